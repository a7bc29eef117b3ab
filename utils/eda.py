"""What is in a data folder: one row a graph, and counts of operations, layouts and choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import polars as pl

from utils.ceiling import noise_ceiling, repeatability
from utils.cluster import each_graph
from utils.coding import Graph, deduplicate
from utils.dataset import GraphFile
from utils.executables import fit_collections, of_collections
from utils.files import write_parquet
from utils.graph_cache import cached_graph
from utils.made_of import has_mark, mark, write_marked
from utils.noise import Executables
from utils.notebook import Run, table_path
from utils.schema import MAX_RANK, OPCODES, SLOTS, UNSET

CHOICES = ("unset", "row-major", "other")  # what a slot of a configuration says
CURVE_POINTS = 101
GRAPH_COLUMNS = {
    "collection": pl.String, "split": pl.String, "name": pl.String, "family": pl.String,
    "nodes": pl.Int64, "edges": pl.Int64, "config_nodes": pl.Int64, "configs": pl.Int64,
    "distinct": pl.Int64, "runtime_min_ns": pl.Int64, "runtime_max_ns": pl.Int64,
    "spread": pl.Float64, "ceiling": pl.Float64, "repeatability": pl.Float64,
}
COUNT_COLUMNS = {"what": pl.String, "value": pl.String, "count": pl.Int64}
_SCHEMA = GRAPH_COLUMNS | {
    "curve": pl.List(pl.Float32), "counts": pl.List(pl.Struct(COUNT_COLUMNS)),
}
_MADE_BY = "ceiling checks coding eda key_table metrics noise npz"


def describe(graph: Graph, seed: int = 0, executables: Executables | None = None) -> dict:
    """One row of tables/graphs.parquet, plus `curve` and `counts`.

    `spread` is the slowest over the fastest target, `ceiling` and `repeatability` are those of
    `utils.ceiling`; they and the runtimes are None where the graph is unlabelled. `curve` float32
    [101]: quantiles of target / fastest target. `counts`: see `count_values`.
    """
    file, target = graph.file, graph.target
    row = {
        "collection": file.collection, "split": file.split, "name": file.name,
        "family": file.family, "nodes": len(graph.opcode), "edges": len(graph.edges),
        "config_nodes": None if file.tile else len(graph.config_nodes),
        "configs": graph.configs, "distinct": len(deduplicate(graph)[2]),
        "runtime_min_ns": None, "runtime_max_ns": None, "spread": None, "curve": None,
        "ceiling": noise_ceiling(graph, executables, seed=seed),
        "repeatability": repeatability(graph),
        "counts": [dict(zip(COUNT_COLUMNS, count)) for count in count_values(graph)],
    }
    if graph.labelled:
        fastest = max(target.min(), np.finfo(float).tiny)
        curve = np.quantile(target / fastest, np.linspace(0, 1, CURVE_POINTS))
        row |= {
            "runtime_min_ns": int(graph.runtime.min()), "runtime_max_ns": int(graph.runtime.max()),
            "spread": float(target.max() / fastest), "curve": curve.astype(np.float32).tolist(),
        }
    return row


def count_values(graph: Graph) -> Iterator[tuple[str, str, int]]:
    """(what, value, count) of a graph:

    - operation: nodes of each opcode; configurable: configurable nodes of each opcode;
    - output, input, kernel: (configuration, node) pairs whose layout of that slot is unset,
      row-major or other;
    - rows: configurable nodes by the number of different rows that they take.
    """
    for what, nodes in [("operation", slice(None)), ("configurable", graph.config_nodes)]:
        if nodes is not None:
            opcode, count = np.unique(graph.opcode[nodes], return_counts=True)
            yield from ((what, opcode_name(o), int(n)) for o, n in zip(opcode, count))
    if graph.codes is None:
        return
    uses = row_uses(graph)
    choice = layout_choice(graph.row_layout)
    for s, slot in enumerate(SLOTS):
        for value, name in enumerate(CHOICES):
            yield slot, name, int(uses[choice[:, s] == value].sum())
    rows = Counter(np.diff(graph.row_start).tolist())
    yield from (("rows", str(value), count) for value, count in sorted(rows.items()))


def opcode_name(opcode: int) -> str:
    return OPCODES[opcode] if opcode < len(OPCODES) else f"opcode {opcode}"


def row_uses(graph: Graph) -> np.ndarray:
    """int64 [R]: how many configurations take each row."""
    sizes = np.diff(graph.row_start)
    uses = [np.bincount(codes, minlength=size) for codes, size in zip(graph.codes.T, sizes)]
    return np.concatenate([np.empty(0, np.int64), *uses])


def layout_choice(row_layout: np.ndarray) -> np.ndarray:
    """int8 [R, 3]: for each slot of a row 0 unset, 1 row-major, 2 other (index into `CHOICES`).

    Row-major is {k-1, ..., 1, 0}, minor to major: the last dimension is contiguous in memory.
    """
    layout = row_layout.reshape(-1, len(SLOTS), MAX_RANK)
    rank = (layout != UNSET).sum(2)
    place = np.arange(MAX_RANK)
    descending = np.where(place < rank[..., None], rank[..., None] - 1 - place, UNSET)
    row_major = (layout == descending).all(2)
    return np.where(rank == 0, 0, np.where(row_major, 1, 2)).astype(np.int8)


def describe_run(run: Run, seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Describe every graph of the run and write tables/graphs.parquet (and executables.parquet).

    Returns (graphs, counts, curves): `graphs` has the columns of GRAPH_COLUMNS, `counts` the keys
    and COUNT_COLUMNS, `curves` the keys, `quantile` (0 to 1) and `slowdown` (from 1). A graph
    described before from the same file by the same code is not described again; labelled files of
    our own are read anyway, to compare their repeats.
    """
    executables = of_collections(fit_collections(run))
    jobs = [(file, seed, executables[file.collection]) for file in run.files]
    each_graph(run, write_description, jobs, "describe graphs")
    table = pl.concat([pl.read_parquet(table_path(run, "eda", file)) for file in run.files])
    graphs = table.select(*GRAPH_COLUMNS)
    write_parquet(run.out / "tables" / "graphs.parquet", graphs)
    keys = ["collection", "split", "name"]
    counts = table.select(*keys, "counts").explode("counts").unnest("counts")
    curves = (
        table.filter(pl.col("curve").is_not_null())
        .select(*keys, pl.col("curve").alias("slowdown"))
        .with_columns(quantile=pl.lit(np.linspace(0, 1, CURVE_POINTS).tolist()))
        .explode("slowdown", "quantile")
    )
    return graphs, counts, curves


def write_description(
    run: Run, file: GraphFile, seed: int, executables: Executables = Executables()
) -> None:
    """Describe one graph in tables/eda/..., unless that is up to date."""
    path = table_path(run, "eda", file)
    made_of = mark(_MADE_BY, file.path, seed, *executables)
    if not has_mark(path, made_of):
        described = describe(cached_graph(run, file), seed, executables)
        write_marked(path, pl.DataFrame([described], schema=_SCHEMA), made_of)


def summary(graphs: pl.DataFrame) -> pl.DataFrame:
    """One row a collection: files of each split, typical sizes, repeats, spread and ceiling."""
    middle = [pl.col(name).median() for name in
              ("nodes", "config_nodes", "configs", "spread", "repeatability", "ceiling")]
    return graphs.group_by("collection", maintain_order=True).agg(
        *((pl.col("split") == split).sum().alias(split) for split in ("train", "valid", "test")),
        families=pl.col("family").n_unique(),
        repeated=1 - pl.col("distinct").sum() / pl.col("configs").sum(),
        *middle,
    )


def shares(counts: pl.DataFrame, what: str, most: int | None = None) -> pl.DataFrame:
    """Share of each value of `what` inside its collection: collection, value, share.

    `most`: only the values with the largest mean share over collections.
    """
    table = (
        counts.filter(pl.col("what") == what)
        .group_by("collection", "value", maintain_order=True).agg(pl.col("count").sum())
        .with_columns(share=pl.col("count") / pl.col("count").sum().over("collection"))
    )
    if most is not None:
        top = table.group_by("value").agg(pl.col("share").sum())
        top = top.sort("share", "value", descending=[True, False]).head(most)["value"]
        table = table.filter(pl.col("value").is_in(top.implode()))
    return table.select("collection", "value", "share")
