"""How fast a large layout file is read, and what follows: ``python -m utils.benchmark_read``.

A file of the release's largest sizes is generated, then its configurations are inflated alone,
read by ``np.load`` and read as a coded graph, each several times; the best time of each counts.
Then come, once each, the steps that follow: what the rankers and the cost tables need to know of
the graph, and the scores of all configurations by the cost tables that `utils.rank` would take.
"""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from numpy.lib import format as npy

from utils import synthetic
from utils.checks import STREAMED
from utils.coding import read_graph
from utils.command import at_least, fail, run_command
from utils.cost import Cost, measured
from utils.cost_rows import cost_rows
from utils.cost_tables import predict
from utils.dataset import DataError, GraphFile
from utils.feature_tables import feature_tables
from utils.files import atomic_path
from utils.graph_stats import graph_statistics
from utils.message_passing import load_reducer, node_vectors
from utils.npz import PIECE_BYTES, igzip_lib, open_npz
from utils.progress import progress
from utils.saved_models import find_model, load_tables
from utils.vector_tables import pool

TEMPLATE = 2000  # configurations that are drawn; the rest mixes them node by node
COLLECTION = "layout:xla:random"


def write_large(path: Path, configs: int, nodes: int, graph_nodes: int = 0, seed: int = 0) -> Path:
    """Write a layout file in blocks, so that it may be larger than memory.

    It has `configs` configurations of at least `nodes` configurable nodes; copies of the program
    that are not configurable fill it up to about `graph_nodes` nodes. Runtimes are as they come.
    """
    layers, arrays = 3 * nodes // 5, {"node_config_ids": ()}
    while len(arrays["node_config_ids"]) < nodes:
        layers += 2
        arrays, _ = synthetic.layout_graph(seed, "nlp", "random", layers, min(configs, TEMPLATE))
    template, rng = arrays.pop(STREAMED), np.random.default_rng(seed)
    length, width = template.shape[:2]
    arrays |= _copies(arrays, max(1, graph_nodes // len(arrays["node_opcode"])))
    del arrays["config_runtime_rounds"]
    arrays["config_runtime"] = rng.choice(arrays["config_runtime"], configs)
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as z:
        for key, values in arrays.items():
            with z.open(f"{key}.npy", "w") as stream:
                npy.write_array(stream, values, allow_pickle=False)
        with z.open(f"{STREAMED}.npy", "w", force_zip64=True) as stream:
            header = {"descr": "<f4", "fortran_order": False, "shape": (configs, width, 18)}
            npy.write_array_header_1_0(stream, header)
            for start in progress(range(0, configs, length), desc="write", unit="block"):
                order = rng.permuted(np.tile(np.arange(length)[:, None], width), axis=0)
                block = template[order, np.arange(width)]
                stream.write(np.ascontiguousarray(block[: configs - start]))
    return path


def _copies(arrays: synthetic.Arrays, count: int) -> synthetic.Arrays:
    """The graph `count` times side by side; only the last copy keeps its root."""
    nodes = len(arrays["node_opcode"])
    feat = np.tile(arrays["node_feat"], (count, 1))
    feat[: (count - 1) * nodes, 0] = 0  # is_root
    offset = np.repeat(np.arange(count) * nodes, len(arrays["edge_index"]))
    return {
        "node_feat": feat,
        "node_opcode": np.tile(arrays["node_opcode"], count),
        "edge_index": np.tile(arrays["edge_index"], (count, 1)) + offset[:, None],
        "node_splits": np.array([[0, count * nodes]], np.int64),
    }


def inflate_alone(path: Path) -> None:
    """Inflate the configurations by Python's own zlib and drop them."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    with zipfile.ZipFile(path) as archive, archive.open(f"{STREAMED}.npy") as stream:
        while stream.readinto(buffer):
            pass


def load_whole(path: Path) -> None:
    """Read the configurations as numpy does."""
    with np.load(path) as arrays:
        arrays[STREAMED].shape


def best(work: Callable[[], object], repeats: int) -> Cost:
    """The shortest time and the highest peak of several turns."""
    costs = []
    for _ in range(repeats):
        with measured() as cost:
            work()
        costs.append(cost)
    peaks = [cost.peak_mb for cost in costs if cost.peak_mb is not None]
    return Cost(min(cost.seconds for cost in costs), max(peaks, default=None))


def compare(path: Path, repeats: int, models: Path | None = None) -> list[str]:
    """What was measured, as lines of text. `models`: see `saved_models.find_model`."""
    file = GraphFile(COLLECTION, "train", path.stem, path)
    with open_npz(path) as archive:
        info = archive.getinfo(f"{STREAMED}.npy")
    sizes = f"{info.compress_size / 1e6:,.0f} MB deflated, {info.file_size / 1e6:,.0f} MB inflated"
    lines = [sizes]
    with measured() as idle:
        pass
    ways = {"inflating alone (zlib)": lambda: inflate_alone(path)}
    ways["coded graph" if igzip_lib else "coded graph (isal is missing)"] = lambda: read_graph(file)
    if info.file_size < psutil.virtual_memory().available / 2:
        ways["np.load"] = lambda: load_whole(path)
    costs = {name: best(work, repeats) for name, work in ways.items()}
    alone = costs["inflating alone (zlib)"].seconds
    costs |= {name: best(work, 1) for name, work in steps(file, models)}
    for name, cost in costs.items():
        memory = ""
        if cost.peak_mb is not None:
            memory = f", {cost.peak_mb - idle.peak_mb:,.0f} MB more than idle"
        ratio = f"{cost.seconds / alone:.2f} x inflating"
        lines.append(f"{name:<32}{cost.seconds:8.2f} s, {ratio}{memory}")
    return lines


def steps(file: GraphFile, models: Path | None = None) -> Iterator[tuple[str, Callable]]:
    """What is done with a graph once it is read, in this order: names and work."""
    graph, found = read_graph(file), {}
    stem = find_model(models, COLLECTION, ["cost_tables"])
    reducer, tables = stem.parent.parent / "message_passing.npz", load_tables(stem)

    def keep(name: str, work: Callable) -> Callable:
        return lambda: found.update({name: work()})

    yield "statistics (02)", keep("statistics", lambda: graph_statistics(graph))
    if reducer.exists():
        load = partial(load_reducer, reducer)
        yield "message passing (03)", keep("vectors", lambda: node_vectors(graph, load()))
        found["pooled"] = pool(graph, found["vectors"])
    told = (found["statistics"], found.get("vectors"), found.get("pooled"))
    yield "features (04)", lambda: feature_tables(graph, *told)
    yield "rows of the cost tables", keep("rows", lambda: cost_rows(graph))
    yield "scores by the cost tables", lambda: predict(tables, graph, found["rows"])


def main(argv: list[str] | None = None) -> int:
    """Command line; prints what was measured."""
    about = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser("python -m utils.benchmark_read", description=about)
    add = parser.add_argument
    add("--configs", type=at_least(2), default=100_040)
    add("--nodes", type=at_least(1), default=300, help="configurable nodes (default 300)")
    add("--graph-nodes", type=at_least(0), default=43_615)
    add("--repeats", type=at_least(1), default=3)
    add("--keep", metavar="FILE", type=Path, help="leave the file here; used again if it is there")
    chosen = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = chosen.keep or Path(folder) / "large.npz"
        if not path.exists():
            write_large(path, chosen.configs, chosen.nodes, chosen.graph_nodes)
        try:
            print(*compare(path, chosen.repeats), sep="\n")
        except DataError as error:
            return fail(error)
    return 0


if __name__ == "__main__":
    run_command(main)
