"""Tables of graph statistics for a run, and which of them go with the spread of runtimes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
import polars as pl
from scipy.stats import rankdata

from utils.cluster import each_graph
from utils.dataset import GraphFile
from utils.files import write_parquet
from utils.graph_stats import graph_statistics, node_statistics
from utils.made_of import has_mark, mark, write_marked
from utils.notebook import Run, table_path
from utils.structure import read_structure

KEYS = ("collection", "split", "name")
_MADE_BY = "contraction graph_stats node_costs opcode_groups stat_tables structure tensors"


def write_statistics(run: Run, files: Iterable[GraphFile] | None = None) -> pl.DataFrame:
    """Statistics of every graph: tables/graph_stats.parquet and tables/node_stats/...; returns

    the first: the keys and one float64 column a statistic. A graph whose two tables were made of
    the same file by the same code is not computed again.
    """
    files = list(run.files if files is None else files)
    each_graph(run, write_graph_statistics, [(file,) for file in files], "graph statistics")
    table = pl.concat([pl.read_parquet(table_path(run, "graph_stats", file)) for file in files])
    write_parquet(run.out / "tables" / "graph_stats.parquet", table)
    return table


def write_graph_statistics(run: Run, file: GraphFile) -> None:
    """The two tables of one graph, see `write_statistics`, unless they are up to date."""
    row_path = table_path(run, "graph_stats", file)
    node_path = table_path(run, "node_stats", file)
    made_of = mark(_MADE_BY, file.path)
    if has_mark(node_path, made_of) and has_mark(row_path, made_of):
        return
    graph = read_structure(file)
    write_marked(node_path, node_statistics(graph), made_of)
    keys = dict(zip(KEYS, (file.collection, file.split, file.name)))
    write_marked(row_path, pl.DataFrame([keys | graph_statistics(graph)]), made_of)


def level_profile(nodes: pl.DataFrame) -> pl.DataFrame:
    """A node table level by level: level, nodes, traffic (bytes), critical (traffic of the nodes

    on the critical path in bytes moved).
    """
    on_path = pl.col("path_traffic") > 1 - 1e-9
    return (
        nodes.group_by("level")
        .agg(
            pl.len().alias("nodes"),
            pl.col("traffic").sum(),
            pl.col("traffic").filter(on_path).sum().alias("critical"),
        )
        .sort("level")
    )


def spread_correlation(
    stats: pl.DataFrame, graphs: pl.DataFrame, seed: int = 0, permutations: int = 500
) -> pl.DataFrame:
    """Spearman's rho between each statistic and the spread (slowest / fastest) of a graph.

    One row a collection and statistic: collection, statistic, rho, graphs, threshold. Statistics
    that are the same for all labelled graphs of a collection are left out, and so are collections
    with fewer than four labelled graphs. ``threshold`` is the 95 % quantile of the largest |rho|
    of all statistics when the spreads are shuffled: with a hundred statistics some look strong by
    chance. Graphs of one program family are alike, so the honest threshold is higher still.
    """
    columns = [c for c in stats.columns if c not in KEYS]
    joined = stats.join(graphs.select(*KEYS, "spread"), on=KEYS).filter(pl.col("spread") > 0)
    parts = []
    for collection in joined["collection"].unique(maintain_order=True):
        part = joined.filter(pl.col("collection") == collection)
        if len(part) < 4:
            continue
        values, spread = part.select(columns).to_numpy(), part["spread"].to_numpy()
        varies = np.ptp(values, axis=0) > 0
        if np.ptp(spread) == 0 or not varies.any():
            continue
        x, y = unit_ranks(values[:, varies]), unit_ranks(spread[:, None])[:, 0]
        rng = np.random.default_rng(seed)
        shuffled = np.stack([rng.permutation(y) for _ in range(permutations)], axis=1)
        parts.append(
            pl.DataFrame(
                {
                    "collection": collection,
                    "statistic": [c for c, keep in zip(columns, varies) if keep],
                    "rho": y @ x,
                    "graphs": len(part),
                    "threshold": float(np.quantile(np.abs(x.T @ shuffled).max(0), 0.95)),
                }
            )
        )
    schema = {"collection": str, "statistic": str, "rho": float, "graphs": int, "threshold": float}
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)


def correlation_grid(table: pl.DataFrame, at_most: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The statistics with the largest mean |rho| as a grid, one column a collection.

    The second grid holds the same values as text, those beyond their threshold with a star. Only
    statistics that vary in the most collections are taken, and of several that rank the graphs
    alike only the first. Both are empty for an empty table.
    """
    order = table.group_by("statistic", maintain_order=True).agg(
        n=pl.len(), size=pl.col("rho").abs().mean(), alike=pl.col("rho").abs().round(6)
    )
    order = order.filter(pl.col("n") == pl.col("n").max())
    order = order.unique("alike", keep="first", maintain_order=True)
    order = order.sort(["size", "statistic"], descending=[True, False])["statistic"]
    rows, columns = order.head(at_most).to_list(), table["collection"].unique(maintain_order=True)
    values = pd.DataFrame(index=rows, columns=columns.to_list(), dtype=float)
    text = pd.DataFrame("", index=rows, columns=columns.to_list())
    for row in table.filter(pl.col("statistic").is_in(rows)).iter_rows(named=True):
        star = " *" if abs(row["rho"]) > row["threshold"] else ""
        values.loc[row["statistic"], row["collection"]] = row["rho"]
        text.loc[row["statistic"], row["collection"]] = f"{row['rho']:.2f}{star}"
    return values, text


def unit_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of each column, centred and of length 1: products of two columns are Spearman's rho."""
    ranks = rankdata(values, axis=0)
    ranks -= ranks.mean(0)
    return ranks / np.linalg.norm(ranks, axis=0)
