"""How many configurations a second cost tables score, beside the per-configuration ranker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from utils import cost_tables, ranking
from utils.coding import Graph
from utils.cost_graphs import Prepared, prepare
from utils.cost_rows import cost_rows, score_rows
from utils.cost_study import seen_rows
from utils.cost_tables import CostTables, row_values
from utils.dataset import GraphFile
from utils.files import save_npz
from utils.layout_features import layout_features
from utils.synthetic import layout_graph

FIRST = 2000  # configurations of a graph that the slow ways are given, at most


def large_graph(folder: Path, configs: int = 100_040, nodes: int = 300, seed: int = 0) -> Prepared:
    """A generated program of about `nodes` configurable nodes with `configs` random codes."""
    arrays, _ = layout_graph(seed, "nlp", "random", layers=round(nodes * 0.6), configs=200)
    path = Path(folder) / "layout" / "nlp" / "random" / "train" / "mlp.large.npz"
    save_npz(path, **arrays)
    small = prepare(GraphFile("layout:nlp:random", "train", "mlp.large", path, ours=True))
    rng = np.random.default_rng(seed)
    codes = np.empty((configs, len(small.graph.config_nodes)), np.uint8, order="F")
    for j, many in enumerate(np.diff(small.graph.row_start)):
        codes[:, j] = rng.integers(many, size=configs)
    graph = replace(small.graph, codes=codes, runtime=np.zeros(configs, np.int64), rounds=None)
    return replace(small, graph=graph)


def speed(work: Callable[[], list[np.ndarray]], repeats: int = 3) -> float:
    """Configurations a second of the fastest of a few calls that give scores, a graph each."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        scores = work()
        seconds.append(time.perf_counter() - start)
    return sum(map(len, scores)) / min(seconds)


def speeds(
    model: CostTables, ranker: ranking.Ranker, graphs: Sequence[Prepared], threads: int = 2
) -> dict[str, float]:
    """Configurations a second in each way to score `graphs`, from their codes in memory.

    The per-configuration ranker has to build its table first, and is given the first FIRST
    configurations of a graph. Columns that it was trained with beyond those of the graph itself
    (statistics, message passing) are missing values here.
    """
    rows = [seen_rows(graph.rows) for graph in graphs]
    values = [row_values(model, r, threads) for r in rows]
    parts = [_first(graph.graph) for graph in graphs]
    tables = [_table(part, ranker) for part in parts]

    def described(graph: Graph) -> np.ndarray:
        return cost_tables.predict(model, graph, seen_rows(cost_rows(graph)), threads)

    ways = {
        "cost tables: sums of lookups": lambda: [
            score_rows(g.graph, r, v, threads) for g, r, v in zip(graphs, rows, values)
        ],
        "cost tables: trees, sums": lambda: [
            cost_tables.predict(model, g.graph, r, threads) for g, r in zip(graphs, rows)
        ],
        "cost tables: rows described, trees, sums": lambda: [described(g.graph) for g in graphs],
        "rank_pairwise: trees": lambda: [ranking.predict(ranker, *t, threads) for t in tables],
        "rank_pairwise: table, trees": lambda: [
            ranking.predict(ranker, *_table(part, ranker), threads) for part in parts
        ],
    }
    return {name: speed(work) for name, work in ways.items()}


def _first(graph: Graph) -> Graph:
    codes = np.asfortranarray(graph.codes[:FIRST])
    return replace(graph, codes=codes, runtime=graph.runtime[:FIRST])


def _table(graph: Graph, ranker: ranking.Ranker) -> tuple[np.ndarray, list[str]]:
    table = layout_features(graph)
    lacking = [name for name in ranker.columns if name not in table.columns]
    table = table.with_columns(pl.lit(np.nan).alias(name) for name in lacking)
    return table.to_numpy().astype(np.float32), table.columns
