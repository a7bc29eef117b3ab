"""Write measured graphs in the release's folders, and keep the books about them.

    DIR/layout/<source>/<search>/<split>/<name>.npz, DIR/tile/xla/<split>/<name>.npz
    DIR/solution.npz        runtimes of the test files, which are unlabelled as in the release
    DIR/measurements.json   how each graph was measured and how well it repeats
"""

from __future__ import annotations

import argparse
import fcntl
import json
import platform
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import jax
import jaxlib
import numpy as np

from utils.files import save_npz, write_json
from utils.schema import SPLITS
from utils.xla import timing


def graph_path(out: Path, collection: str, split: str, name: str) -> Path:
    """Where the release's layout of folders keeps a graph."""
    return out.joinpath(*collection.split(":"), split, f"{name}.npz")


def quality(blocks: np.ndarray, rounds: int) -> dict:
    """What the books say of a graph's timing, from blocks int64 [c, 8] (ns)."""
    runtime = timing.robust_runtime(blocks)
    return {
        "configurations": len(runtime),
        "rounds": rounds,
        "repeatability": round(timing.repeatability(blocks), 4),
        "fastest_ns": int(runtime.min()),
        "slowest_ns": int(runtime.max()),
    }


def finished(out: Path, collection: str, name: str) -> bool:
    """Whether a graph was measured before: its file is there, or it was left out as noise."""
    if any(graph_path(out, collection, split, name).exists() for split in SPLITS):
        return True
    return f"{collection}:{name}" in _books(out).get("left_out", {})


def write(
    out: Path, collection: str, split: str, name: str, graph: dict, options: argparse.Namespace
) -> None:
    """Write one measured graph and its entry in the books.

    graph: the schema's arrays with true runtimes, and ``info``. A test file gets zeros (tile
    normalizers 1) and its runtimes go to solution.npz. A graph whose two halves agree at less
    than ``options.min_tau`` is only booked under ``left_out``.
    """
    key = f"{collection}:{name}"
    arrays = {k: v for k, v in graph.items() if k != "info"}
    info = graph["info"] | {"split": split, "measured": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
    info["settings"] = _settings(options)  # a run that is resumed may have other ones
    noisy = info["repeatability"] < options.min_tau
    with _locked(out):
        if not noisy and split == "test":
            rounds = arrays["config_runtime_rounds"]
            hidden = {key: arrays["config_runtime"], f"{key}/rounds": rounds}
            if "config_runtime_normalizers" in arrays:
                hidden[f"{key}/normalizer"] = arrays["config_runtime_normalizers"]
                arrays["config_runtime_normalizers"] = np.ones_like(hidden[key])
            arrays["config_runtime"] = np.zeros_like(hidden[key])
            del arrays["config_runtime_rounds"]
            solution = out / "solution.npz"
            known = dict(np.load(solution, allow_pickle=False)) if solution.exists() else {}
            save_npz(solution, **dict(sorted((known | hidden).items())))
        if not noisy:
            save_npz(graph_path(out, collection, split, name), **arrays)
        books = {"machine": _machine()} | _books(out)
        for table in ("graphs", "left_out"):
            entries = {k: v for k, v in books.get(table, {}).items() if k != key}
            if (table == "left_out") == noisy:
                entries[key] = info
            books[table] = dict(sorted(entries.items()))
        write_json(out / "measurements.json", books)


def _books(out: Path) -> dict:
    path = out / "measurements.json"
    return json.loads(path.read_text()) if path.exists() else {}


@contextmanager
def _locked(out: Path):
    """Two collectors may share a folder, say one a family: the books have one writer."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _settings(options: argparse.Namespace) -> dict:
    return {
        "seed": options.seed,
        "configurations": options.configs,
        "seconds_a_graph": options.seconds,
        "min_tau": options.min_tau,
        "enough_tau": options.enough_tau,
        "blocks": timing.BLOCKS,
        "trim": timing.TRIM,
        "threads": 1,
        "quick_compile": options.quick_compile,
    }


def _machine() -> dict:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        model = lines[0].split(":")[1].strip() if lines else model
    return {
        "cpu": model,
        "system": platform.system(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "backend": "XLA:CPU",
    }
