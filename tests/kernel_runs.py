"""Run the kernel notebook in a process of its own: an empty folder, no network, no repository."""

import csv
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from utils import kernel

HERE = Path(__file__).resolve().parent
OLD_PYTHON = kernel.ROOT / ".venv-kaggle" / "bin" / "python"  # made by ./run_all.sh test
KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@cache
def no_network() -> tuple[str, ...]:
    """A command that takes the network away from what it starts, where the system allows it."""
    command = ("unshare", "--net", "--map-root-user")
    try:
        allowed = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    except OSError:
        allowed = False
    return command if allowed else ()


def run(python: Path | str, folder: Path, *given: str) -> dict:
    """What the notebook found (see run_cells.py) and what it printed, run in `folder` / work."""
    work = folder / "work"
    work.mkdir(parents=True)
    command = [*no_network(), python, "-I", HERE / "run_cells.py", kernel.TARGET]
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    done = subprocess.run(
        [*map(str, command), str(folder / "result.json"), *given], cwd=work, env=environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    with open(work / "submission.csv", newline="", encoding="utf-8") as stream:
        found["rows"] = {row["ID"]: row["TopConfigs"] for row in csv.DictReader(stream)}
    found["made"] = sorted(path.name for path in work.iterdir())
    return found | {"printed": done.stdout}


def here() -> str:
    return sys.executable


def check_rows(rows: dict[str, str], sizes: dict[str, int]) -> None:
    """Every graph of `sizes` (ID -> configurations) is ranked, with indices of its own rows."""
    assert sorted(rows) == sorted(sizes)
    for name, text in rows.items():
        order = [int(index) for index in text.split(";")]
        if name.startswith("tile"):
            assert len(set(order)) == len(order) == min(5, sizes[name])
            assert 0 <= min(order) and max(order) < sizes[name]
        else:
            assert sorted(order) == list(range(sizes[name]))
