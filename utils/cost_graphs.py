"""Graphs ready for cost tables: distinct configurations, their rows, and what is trained on."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from utils.coding import Graph, deduplicate, read_graph
from utils.cost_rows import CostRows, cost_rows
from utils.dataset import GraphFile
from utils.graph_cache import cached_graph
from utils.notebook import Run, table_path
from utils.sampling import sample_by_rank

TERMS = 400_000  # of one graph that are trained on at most: 60 bytes each while a model is fitted


@dataclass(frozen=True)
class Prepared:
    """A graph, distinct configurations only, and its rows."""

    file: GraphFile
    graph: Graph
    rows: CostRows
    chosen: np.ndarray | None = None  # int64 [c]: these of the distinct configurations; None: all


def prepare(file: GraphFile) -> Prepared:
    """Read a graph and describe its rows, without node vectors."""
    return described(read_graph(file))


def described(graph: Graph, vectors: np.ndarray | None = None) -> Prepared:
    """A graph and its rows, with the node vectors float [n, k] if there are any."""
    distinct, _, _ = deduplicate(graph)
    return Prepared(graph.file, distinct, cost_rows(distinct, vectors))


def take(graph: Prepared, chosen: np.ndarray) -> Prepared:
    """The same graph with some of its configurations, int64 [c]."""
    codes, runtime = graph.graph.codes[chosen], graph.graph.runtime[chosen]
    part = replace(graph.graph, codes=np.asfortranarray(codes), runtime=runtime, rounds=None)
    return replace(graph, graph=part, chosen=chosen)


def sample(graph: Prepared, max_configs: int = 0) -> Prepared:
    """At most `max_configs` configurations (0: all) and TERMS terms, evenly over its ranks, drawn
    by the graph's name."""
    limit = max(2, TERMS // max(1, len(graph.rows.columns)))
    limit = min(limit, max_configs or limit)
    if graph.graph.configs <= limit:
        return graph
    draw = np.random.default_rng(zlib.crc32(graph.file.id.encode()))
    return take(graph, sample_by_rank(graph.graph.target, limit, draw))


class Graphs:
    """Prepared graphs by file. What is trained on is kept, for one source at a time."""

    def __init__(self, run: Run, max_configs: int = 0) -> None:
        self.run, self.max_configs, self.source, self.kept = run, max_configs, "", {}

    def __call__(self, file: GraphFile) -> Prepared:
        """With all its distinct configurations."""
        if (source := file.collection.split(":")[1]) != self.source:
            self.source, self.kept = source, {}
        found = self.kept.get(file)
        if found is None or found.chosen is not None:
            path = table_path(self.run, "node_vectors", file)
            vectors = pl.read_parquet(path).to_numpy() if path.exists() else None
            found = described(cached_graph(self.run, file), vectors)
            self.kept.setdefault(file, sample(found, self.max_configs))
        return found

    def sampled(self, file: GraphFile) -> Prepared:
        """With the configurations that are trained on."""
        if file not in self.kept:
            self(file)
        return self.kept[file]
