"""The whole job on a generated release in miniature: ``python -m utils.miniature DIR``.

64 layout graphs of 2,500 to 20,000 configurations and 320 tile kernels are generated into
DIR/data; ``./run_all.sh`` ranks them into DIR/out. On the way it is killed (SIGKILL, in notebook
04) and started again. Printed are its own lines (seconds and peak memory of every notebook), the
largest resident memory of all its processes together, and what the second start made again.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from utils import synthetic
from utils.command import at_least, folder_path, run_command
from utils.dataset import index
from utils.options import ROOT
from utils.run_notebook import kill_tree
from utils.schema import COLLECTIONS, TILE_COLLECTION

LAYOUTS = tuple(name for name in COLLECTIONS if name != TILE_COLLECTION)
# Configurations of a graph -> graphs of each split, in every layout collection.
SHAPE = {
    20_000: {"train": 3, "valid": 1, "test": 1},
    10_000: {"train": 3, "valid": 1, "test": 1},
    2_500: {"train": 4, "valid": 1, "test": 1},
}
TILES = {"train": 256, "valid": 32, "test": 32}
TILE_CONFIGS = 300
LAYERS = 100  # 300 to 700 nodes, 100 to 170 of them configurable
PAUSE = 0.2  # seconds between two looks


def write_miniature(
    folder: Path,
    shape: dict[int, dict[str, int]] = SHAPE,
    tiles: dict[str, int] = TILES,
    layers: int = LAYERS,
) -> Path:
    """Write the data; returns the folder. Runtimes of test graphs are nowhere, as in the release.

    `shape`: see SHAPE; `tiles`: kernels of each split.
    """
    first = 0
    for configs, graphs in shape.items():
        synthetic.write_data(folder, 0, graphs, configs, layers, 0, 0.02, LAYOUTS, first)
        first += max(graphs.values())
    only = (TILE_COLLECTION,)
    synthetic.write_data(folder, 0, tiles, TILE_CONFIGS, rounds=0, collections=only)
    (folder / "solution.npz").unlink()
    return folder


def resident_mb(parent: int) -> float:
    """Resident memory of a process and all below it, in MB; shared pages count each time."""
    total = 0
    try:
        family = [psutil.Process(parent), *psutil.Process(parent).children(recursive=True)]
    except psutil.Error:
        return 0.0
    for process in family:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total / 2**20


def run_job(command: list[str], enough: Callable[[], bool] = lambda: False) -> tuple[int, float]:
    """Run a command; (exit status, largest `resident_mb`). Killed with all below it when `enough`.
    """
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    peak = 0.0
    try:
        while process.poll() is None:
            peak = max(peak, resident_mb(process.pid))
            if enough():
                kill_tree(process)
            time.sleep(PAUSE)
    finally:
        kill_tree(process)
    return process.wait(), peak


def finished(out: Path) -> dict[Path, int]:
    """The feature tables there are, and when they were written (ns)."""
    tables = (out / "tables" / "features").rglob("[!.]*.parquet")
    return {path: path.stat().st_mtime_ns for path in tables}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m utils.miniature",
        description="The whole job on a generated release in miniature.",
    )
    parser.add_argument("folder", type=folder_path, help="where to put data and results, some GB")
    parser.add_argument("--kill-at", type=at_least(1), default=20, metavar="N",
                        help="kill the first start when N feature tables are there (default 20)")
    options = parser.parse_args(argv)
    folder = options.folder.resolve()
    data, out = folder / "data", folder / "out"
    if not data.exists():
        write_miniature(folder / "writing")
        (folder / "writing").rename(data)
    files = index(data)
    tiles = sum(file.tile for file in files)
    size = sum(file.size for file in files) / 2**20
    print(f"{len(files) - tiles} layout graphs, {tiles} tile kernels, {size:,.0f} MB", flush=True)
    command = ["./run_all.sh", "--data", str(data), "--out", str(out)]
    status, first = run_job(command, lambda: len(finished(out)) >= options.kill_at)
    before = finished(out)
    print(f"killed with {len(before)} feature tables there (status {status}); again:", flush=True)
    begin = time.monotonic()
    status, peak = run_job(command)
    after = finished(out)
    again = sum(after.get(path) != when for path, when in before.items())
    print(f"ended {status} after {time.monotonic() - begin:,.0f} s; {again} tables made again; "
          f"all processes together at most {max(first, peak):,.0f} MB")
    return status


if __name__ == "__main__":
    run_command(main)
