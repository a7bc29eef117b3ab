"""Coded graphs of a run, kept as they are in memory: what was read once is not inflated again.

Two files a graph below ``<out>/cache/graphs``: ``NAME.npz`` (stored, not deflated) holds the small
arrays and a mark of the contents of the data file; ``NAME.npy``, layout graphs only, the codes,
which are mapped into memory and not read before they are used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from utils.coding import Graph, read_graph
from utils.dataset import GraphFile
from utils.files import atomic_path
from utils.made_of import mark
from utils.manifest import content_hash
from utils.notebook import Run
from utils.npz import READ_ERRORS

ARRAYS = tuple(name for name in Graph.__dataclass_fields__ if name not in ("file", "codes"))
_MADE_BY = "checks coding graph_cache hlo hlo_proto key_table npz schema sources tars"


def cached_graph(run: Run, file: GraphFile) -> Graph:
    """What `read_graph` gives, from the run's cache if it was read before by the same code and the
    contents of the file are still the same (by `content_hash`: no array is read to know it).

    ``codes`` is then read-only and mapped. Where ``run.cache`` is False nothing is looked up or
    kept. A damaged copy is made again. Raises `DataError` naming the file, and OSError where there
    is no room for the copy.
    """
    if not run.cache:
        return read_graph(file)
    folder = cache_folder(run.out) / file.collection.replace(":", "_") / file.split
    small, codes = folder / f"{file.name}.npz", folder / f"{file.name}.npy"
    made_of = mark(_MADE_BY, content_hash(file))
    try:
        with np.load(small, allow_pickle=False) as kept:
            if kept["made_of"] == made_of:
                arrays = {name: kept[name] for name in ARRAYS if name in kept}
                if not file.tile:
                    mapped = np.load(codes, mmap_mode="r", allow_pickle=False)
                    arrays["codes"] = np.asarray(mapped)
                return Graph(file=file, **arrays)
    except READ_ERRORS:
        pass  # not there, or damaged
    graph = read_graph(file)
    if graph.codes is not None:
        with atomic_path(codes) as temporary, open(temporary, "wb") as stream:
            np.save(stream, graph.codes, allow_pickle=False)
    there = {name: getattr(graph, name) for name in ARRAYS if getattr(graph, name) is not None}
    with atomic_path(small) as temporary, open(temporary, "wb") as stream:
        np.savez(stream, allow_pickle=False, made_of=np.array(made_of), **there)
    return graph


def cache_folder(out: Path) -> Path:
    """Where the coded graphs of a run lie."""
    return out / "cache" / "graphs"


def cache_bytes(out: Path) -> int:
    """Bytes of all coded graphs of a run."""
    return sum(path.stat().st_size for path in cache_folder(out).rglob("*.np[yz]"))
