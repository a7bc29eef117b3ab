"""The command line of run_all.sh, in the standard library only: it is read before installing."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from utils.command import at_least, folder_path

# Notebooks that need more than requirements.txt, and so run only when asked for.
EXTRAS = {"gnn": ("07",), "xla": ("12",)}
ROOT = Path(__file__).resolve().parent.parent


def parse(argv: list[str]) -> argparse.Namespace:
    """Options as a namespace; `extras` is a tuple, `parameters` a list of (name, text)."""
    parser = argparse.ArgumentParser(
        "./run_all.sh",
        description="Run the numbered notebooks in order, from graph files to a submission.",
        epilog="./run_all.sh test [pytest arguments] runs the tests.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--data", metavar="DIR", help="folder that holds layout/ and/or tile/, or a parent of it "
        "such as Kaggle's npz_all, or the release's .tar files; or one .tar file "
        "(default: a Kaggle mount, else data/sample)")
    add("--out", metavar="DIR", type=folder_path, help="where everything that is made goes "
        "(default: outputs/sample, or outputs/run when --data is given)")
    add("--collections", metavar="A,B", default="", help="only these, such as "
        "layout:xla:random,tile:xla (default: all that have files)")
    add("--from", dest="first", metavar="NN", type=_number, help="start at this notebook and use "
        "what the ones before it wrote earlier")
    add("--only", metavar="NN", type=_number, help="run just this notebook")
    add("--jobs", metavar="N", type=at_least(1),
        help="threads to use (default: all that there are, two for training)")
    add("--with", dest="extras", metavar="X,Y", type=_extras, default=(),
        help=f"also run and install extras: {', '.join(EXTRAS)}")
    add("--dask", metavar="ADDRESS", default="", help="let the workers of this Dask "
        "scheduler, such as tcp://10.0.0.1:8786, make tables and train rank_pairwise")
    add("--full", action="store_true", help="the whole study: every seed, fold assignment and "
        "ablation (hours; can be interrupted and started again)")
    add("--no-cache", action="store_true", help="read every data file anew and keep no graph in "
        "the cache/ of the run")
    add("-p", dest="parameters", nargs=2, metavar=("NAME", "VALUE"), action="append", default=[],
        help="set a parameter of the notebooks that have it; may be repeated")
    options = parser.parse_args(argv)
    if options.first and options.only:
        parser.error("--from and --only exclude each other")
    return options


def _number(text: str) -> str:
    if not text.isdigit() or len(text) > 2:
        raise argparse.ArgumentTypeError(f"'{text}' is not the number of a notebook, such as 05")
    return text.zfill(2)


def _extras(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in EXTRAS:
            raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(EXTRAS)}")
    return names


def resume_command(argv: list[str], number: str) -> str:
    """The command that runs again what `argv` asked for, beginning at notebook `number`."""
    kept, skip = [], False
    for word in argv:
        replaced = word.split("=")[0] in ("--from", "--only")
        if not replaced and not skip:
            kept.append(word)
        skip = word in ("--from", "--only")
    option = "--only" if parse(argv).only else "--from"
    return shlex.join(["./run_all.sh", *kept, option, number])


def requirements(options: argparse.Namespace) -> list[str]:
    """The requirements files that a run with these options needs."""
    extras = [*options.extras, *(["dask"] if options.dask else [])]
    files = ["requirements.txt", *(f"requirements-{extra}.txt" for extra in extras)]
    return [file for file in files if (ROOT / file).exists()]


if __name__ == "__main__":
    print(*requirements(parse(sys.argv[1:])))
