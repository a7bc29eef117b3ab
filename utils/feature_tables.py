"""Feature tables of a run: one file a graph, kept while what they were made of stays the same."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl

from utils.cluster import each_graph
from utils.coding import Graph, deduplicate
from utils.dataset import GraphFile
from utils.graph_cache import cached_graph
from utils.layout_features import layout_features
from utils.made_of import has_mark, mark, write_marked
from utils.notebook import Run, require, table_path
from utils.stat_tables import KEYS, unit_ranks
from utils.tile_features import tile_features

NOT_FEATURES = ("target", "count")
GROUPS = {
    "node": "sums over layouts of nodes",
    "loop": "loops of the program",
    "copy": "copies between layouts",
    "cfg": "configuration alone",
    "tile": "tiles",
    "stat": "graph statistics",
    "mp": "message passing",
    "trans": "how often seen (transductive)",
}
_MADE_BY = (
    "coding contraction feature_tables key_table layout_edges layout_features layout_rows "
    "layout_spread layout_tables loop_reads loops node_costs orders program recompute roles "
    "tensors tile_features"
)


def write_features(run: Run, files: Iterable[GraphFile] | None = None) -> int:
    """Write tables/features/... and tables/rows/... of every graph; returns how many were made.

    Features have one row a distinct configuration in order of first appearance: `target` (float64,
    null where unlabelled), `count`, then the features. Rows have one row a row of the file:
    `distinct` (int32, the index into the former) and `target`. A graph whose two tables were made
    from the same file, statistics, vectors and code is left as it is.
    """
    files = list(run.files if files is None else files)
    statistics = _by_graph(require(run.out / "tables" / "graph_stats.parquet", "02"))
    pooled = _by_graph(require(run.out / "tables" / "message_passing.parquet", "03"))
    keys = [(file.collection, file.split, file.name) for file in files]
    jobs = [(file, statistics[key], pooled[key]) for file, key in zip(files, keys)]
    return sum(each_graph(run, write_graph_features, jobs, "features"))


def write_graph_features(
    run: Run, file: GraphFile, statistics: dict[str, float], pooled: dict[str, float]
) -> bool:
    """The two tables of one graph, see `write_features`; False where they were up to date."""
    paths = [table_path(run, kind, file) for kind in ("features", "rows")]
    vectors = None if file.tile else require(table_path(run, "node_vectors", file), "03")
    made_of = mark(_MADE_BY, file.path, vectors, statistics, pooled)
    if all(has_mark(path, made_of) for path in paths):
        return False
    node_vectors = None if vectors is None else pl.read_parquet(vectors).to_numpy()
    tables = feature_tables(cached_graph(run, file), statistics, node_vectors, pooled)
    for path, table in zip(paths, tables):
        write_marked(path, table, made_of)
    return True


def feature_tables(
    graph: Graph,
    statistics: dict[str, float] | None = None,
    node_vectors: np.ndarray | None = None,
    pooled: dict[str, float] | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The two tables of one graph, see `write_features`."""
    distinct, inverse, count = deduplicate(graph)
    rows = pl.DataFrame({"distinct": inverse.astype(np.int32), "target": _target(graph)})
    return distinct_table(distinct, count, statistics, node_vectors, pooled), rows


def distinct_table(
    distinct: Graph,
    count: np.ndarray,
    statistics: dict[str, float] | None = None,
    node_vectors: np.ndarray | None = None,
    pooled: dict[str, float] | None = None,
) -> pl.DataFrame:
    """The table of features of a graph that holds each configuration once, see `write_features`."""
    if distinct.codes is None:
        features = tile_features(distinct, count, statistics, pooled)
    else:
        features = layout_features(distinct, count, statistics, node_vectors, pooled)
    head = pl.DataFrame({"target": _target(distinct), "count": count})
    return pl.concat([head, features], how="horizontal")


def feature_groups(columns: Iterable[str]) -> dict[str, int]:
    """How many feature columns each group has, by the prefix of their names."""
    groups = [name.split("_")[0] for name in columns if name not in NOT_FEATURES]
    return {group: groups.count(group) for group in GROUPS if group in groups}


def column_correlations(
    run: Run, files: Iterable[GraphFile], max_configs: int = 1000
) -> pl.DataFrame:
    """Spearman's rho between each feature column alone and the target, inside each graph.

    One row a labelled graph and column that varies in it: collection, name, group, column, rho.
    Only the first `max_configs` distinct configurations are looked at.
    """
    parts = []
    for file in files:
        table = pl.read_parquet(require(table_path(run, "features", file), "04")).head(max_configs)
        if table["target"].null_count() or table["target"].n_unique() < 2:
            continue
        names = [c for c in table.columns if c not in NOT_FEATURES]
        values = table.select(names).to_numpy()
        varies = np.isfinite(values).all(0) & (values.max(0) > values.min(0))
        rho = unit_ranks(values[:, varies]).T @ unit_ranks(table["target"].to_numpy()[:, None])
        names = [name for name, keep in zip(names, varies) if keep]
        parts.append(
            pl.DataFrame({"column": names, "rho": rho[:, 0]}).select(
                pl.lit(file.collection).alias("collection"),
                pl.lit(file.name).alias("name"),
                pl.col("column").str.split("_").list.first().alias("group"),
                "column",
                "rho",
            )
        )
    schema = {"collection": str, "name": str, "group": str, "column": str, "rho": float}
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)


def _target(graph: Graph) -> pl.Series:
    values = graph.target if graph.labelled else [None] * graph.configs
    return pl.Series(values, dtype=pl.Float64)


def _by_graph(path: Path) -> dict[tuple[str, ...], dict[str, float]]:
    """A table with KEYS and columns as {(collection, split, name): {column: value}}."""
    rows = pl.read_parquet(path).to_dicts()
    return {
        tuple(row[k] for k in KEYS): {c: v for c, v in row.items() if c not in KEYS}
        for row in rows
    }
