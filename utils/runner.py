"""Run the numbered notebooks in order (./run_all.sh): check everything first, then go."""

from __future__ import annotations

import os
import signal
import sys
import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from utils import cluster, dataset, manifest, options
from utils.command import FAILED, INTERRUPTED, WRONG, fail, run_command, shown
from utils.files import remove_leftovers, write_json
from utils.graph_cache import cache_bytes, cache_folder
from utils.notebook import split_names
from utils.notebook_files import Notebook, NotebookError, chosen_values, list_notebooks
from utils.run_notebook import run_notebook

# Parameters that an option sets.
OPTION_OF = {
    "DATA_DIR": "--data",
    "OUT_DIR": "--out",
    "COLLECTIONS": "--collections",
    "FULL": "--full",
    "DASK": "--dask",
    "THREADS": "--jobs",
    "CACHE": "--no-cache",
}


@dataclass(frozen=True)
class Plan:
    """Everything that is known before the first notebook starts."""

    root: Path
    out: Path
    notebooks: list[Notebook]  # those to run
    values: dict[str, dict[str, object]]  # notebook name -> parameters to inject
    jobs: int | None
    record: dict  # manifest.json without the notebooks


def main(argv: list[str] | None = None, root: Path = options.ROOT) -> int:
    """Exit status: 0 all ran, 1 bad data or a notebook failed, 2 wrong options, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    chosen = options.parse(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the kernel with us
    try:
        dataset.check_names(split_names(chosen.collections))
    except dataset.DataError as error:
        return fail(error, WRONG)
    try:
        plan = make_plan(chosen, root)
        return run_plan(plan, argv)
    except NotebookError as error:  # mostly an option that the notebooks don't have
        return fail(error, WRONG)
    except (dataset.DataError, cluster.ClusterError, OSError) as error:
        return fail(error)


def make_plan(chosen: Namespace, root: Path) -> Plan:
    """Check notebooks, parameters, every data file and the Dask workers, if any.

    Raises NotebookError, DataError or ClusterError.
    """
    notebooks = list_notebooks(root / "notebooks")
    to_run = select(notebooks, chosen)
    for name, _ in chosen.parameters:
        if name in OPTION_OF:
            raise NotebookError(f"-p {name}: use {OPTION_OF[name]}")
    values = chosen_values(to_run, notebooks, chosen.parameters)

    data = _from_here(chosen.data, root) if chosen.data else ""
    folder = dataset.find_data(root / data if data else None, root)
    files = dataset.index(folder, split_names(chosen.collections))
    check_data(files)
    default = "outputs/run" if data else "outputs/sample"
    out = _from_here(chosen.out, root) if chosen.out else default
    hashes = manifest.data_hashes(files)
    changed = manifest.changed_collections(manifest.read_manifest(root / out), hashes)
    if changed:
        what = f"holds results of other data in {', '.join(changed)}"
        raise dataset.DataError(f"{out} {what}: choose another --out, or delete it")

    workers = None
    if chosen.dask:
        with cluster.open_client(chosen.dask, root / out, folder) as client:
            workers = len(client.nthreads())

    common = {"OUT_DIR": out}
    common |= {"DATA_DIR": data} if data else {}
    common |= {"COLLECTIONS": chosen.collections} if chosen.collections else {}
    common |= {"FULL": True} if chosen.full else {}
    common |= {"DASK": chosen.dask} if chosen.dask else {}
    common |= {"THREADS": chosen.jobs} if chosen.jobs else {}
    common |= {"CACHE": False} if chosen.no_cache else {}
    for notebook in to_run:
        own = {name: value for name, value in common.items() if name in notebook.defaults}
        values[notebook.name] = own | values[notebook.name]
    record = {
        "data": {"folder": _public("folder", os.path.relpath(folder, root)), "collections": hashes},
        "full": chosen.full,
        "jobs": chosen.jobs,  # null: as many threads as there are processors
        "dask_workers": workers,  # null: none
        "packages": manifest.package_versions(root),
        "git": manifest.git_state(root),
        "machine": manifest.machine(),
    }
    return Plan(root, root / out, to_run, values, chosen.jobs, record)


def select(notebooks: list[Notebook], chosen: Namespace) -> list[Notebook]:
    """The notebooks to run. Raises NotebookError where one that was asked for is missing."""
    there = {notebook.number for notebook in notebooks}
    asked = {number: "" for number in (chosen.first, chosen.only) if number}
    asked |= {n: f" (--with {e})" for e in chosen.extras for n in options.EXTRAS[e]}
    for number, why in asked.items():
        if number not in there:
            have = ", ".join(sorted(there))
            raise NotebookError(f"there is no notebook {number}{why}, only {have}")
    extra = {n: e for e, numbers in options.EXTRAS.items() for n in numbers}
    if extra.get(chosen.only) and extra[chosen.only] not in chosen.extras:
        raise NotebookError(f"notebook {chosen.only} needs --with {extra[chosen.only]}")
    return [
        notebook
        for notebook in notebooks
        if (not chosen.only or notebook.number == chosen.only)
        and (not chosen.first or notebook.number >= chosen.first)
        and extra.get(notebook.number, "") in ("", *chosen.extras)
    ]


def check_data(files: list[dataset.GraphFile]) -> None:
    """Raises DataError with one line a problem."""
    problems = dataset.check_files(files)
    if problems:
        count = len({problem.split(": ")[0] for problem in problems})
        for problem in problems:
            fail(problem)
        raise dataset.DataError(f"{count} of {len(files)} data files are bad; nothing was run")


def run_plan(plan: Plan, argv: list[str]) -> int:
    """Run the notebooks; the manifest is written anew after each."""
    before = manifest.read_manifest(plan.out).get("notebooks", [])
    entries = {entry["notebook"]: entry for entry in before}
    counts = ", ".join(f"{c} {d['files']}" for c, d in plan.record["data"]["collections"].items())
    print(f"Data files: {counts}")
    remove_leftovers(plan.out)
    begin = time.monotonic()
    for notebook in plan.notebooks:
        target = plan.out / "notebooks" / notebook.path.name
        values = plan.values[notebook.name]
        resume = options.resume_command(argv, notebook.number)
        try:
            outcome = run_notebook(
                notebook.path, target, values, plan.root, plan.jobs, _ticker(notebook.name)
            )
        except KeyboardInterrupt:
            print(f"\nInterrupted in {notebook.name}. Go on with:\n  {resume}", file=sys.stderr)
            return INTERRUPTED
        times = f"{outcome.seconds:8.1f} s{outcome.peak_mb:8,.0f} MB"
        print(f"{_start()}{notebook.name:<24}{times}", flush=True)
        entries[notebook.name] = {
            "notebook": notebook.name,
            "status": outcome.status,
            "seconds": round(outcome.seconds, 1),
            "peak_mb": round(outcome.peak_mb),
            "parameters": {n: _public(n, v) for n, v in (notebook.defaults | values).items()},
            "git": plan.record["git"],
        }
        listed = [entries[name] for name in sorted(entries)]
        write_json(plan.out / "manifest.json", plan.record | {"notebooks": listed})
        if outcome.status != "done":
            print(f"\n{notebook.name}: {outcome.status}.\n{outcome.message}", file=sys.stderr)
            print(f"\nExecuted notebook: {shown(target)}", file=sys.stderr)
            print(f"Go on with:\n  {resume}", file=sys.stderr)
            return FAILED
    if size := cache_bytes(plan.out):
        folder = shown(cache_folder(plan.out))
        print(f"Coded graphs: {size / 2**20:,.1f} MB in {folder}; they can be deleted at any time")
    minutes, seconds = divmod(round(time.monotonic() - begin), 60)
    print(f"Done in {minutes} min {seconds} s: {shown(plan.out)}")
    return 0


def _from_here(path: str | Path, root: Path) -> str:
    """A path from the command line as seen from `root`: relative when it was, or lies inside."""
    full = Path(os.path.abspath(Path(path).expanduser()))
    if full.is_relative_to(root) or not Path(path).expanduser().is_absolute():
        return os.path.relpath(full, root)
    return str(full)


def _public(name: str, value):
    """A path inside the repository, or anything else, as it is; of a path outside the last part,

    and of the scheduler's address nothing.
    """
    if name == "DASK" and value:
        return "given"
    outside = isinstance(value, str) and (value.startswith("..") or os.path.isabs(value))
    return Path(value).name if outside else value


def _start() -> str:
    return "\r" if sys.stdout.isatty() else ""


def _ticker(name: str):
    """Shows the seconds so far on a terminal, nothing elsewhere."""
    if not sys.stdout.isatty() or os.environ.get("CI"):
        return lambda seconds: None
    return lambda seconds: print(f"\r{name:<24}{seconds:8.0f} s", end="", flush=True)


if __name__ == "__main__":
    run_command(main)
