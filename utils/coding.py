"""Coded graphs: a configuration is a list of small row numbers, not of 18-vectors.

A configurable node takes only a handful of distinct layout vectors. `rows` are the distinct
(configurable node, vector) pairs of a file; `codes` say which row of its node each configuration
takes. A sum over the nodes of a configuration is then a sum of looked-up values (`config_sum`),
and ``node_config_feat``, up to 100,040 x 3,143 x 18 float32, is never in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from utils.checks import STREAMED, check_headers, check_values
from utils.key_table import KeyTable
from utils.npz import DataError
from utils.schema import MAX_RANK, SLOTS
from utils.sources import open_source

if TYPE_CHECKING:
    from utils.dataset import GraphFile

LOWEST, HIGHEST = -1, 5  # layout values; +1 they are digits of base 7
BASE = HIGHEST - LOWEST + 1
COLUMNS = len(SLOTS) * MAX_RANK
BLOCK_BYTES = 1 << 19  # with what is made of it, a block stays in the cache of one core

# 18 digits of base 7 name a vector exactly: 7**18 = 1.63e15 < 2**53. One slot has six digits,
# 7**6 = 117,649 < 2**24, exact in float32: so one float32 product gives three slot numbers, and
# only these are widened. With the node's number in front, keys of all nodes fit into int64.
_DIGITS = BASE ** np.arange(MAX_RANK)
SLOT_WEIGHTS = np.kron(np.eye(len(SLOTS)), _DIGITS[:, None]).astype(np.float32)  # [18, 3]
KEY_WEIGHTS = (float(BASE) ** (MAX_RANK * np.arange(len(SLOTS)))).astype(np.float64)  # [3]
KEYS = BASE**COLUMNS  # of one node
KEY_OFFSET = (KEYS - 1) // (BASE - 1)  # the key of 18 ones: x + 1 for x = 0
MAX_NODES = (1 << 63) // KEYS  # 5,663; the release has up to 3,143


@dataclass(frozen=True)
class Graph:
    """One graph with its configurations. Arrays that don't apply are None.

    n nodes, m edges, c configurations, nc configurable nodes, R rows. Row of configuration i at
    configurable node j: ``row_start[j] + codes[i, j]``. The rows of a node are in ascending order
    of their vectors read as numbers, whatever the order in the file.
    """

    file: GraphFile
    node_feat: np.ndarray  # float32 [n, 140]
    opcode: np.ndarray  # uint8 [n]
    edges: np.ndarray  # int64 [m, 2]: u consumes the output of v
    runtime: np.ndarray  # int64 [c], ns; zeros where unlabelled
    rounds: np.ndarray | None = None  # int64 [c, r], ns: repeated measurements
    config_nodes: np.ndarray | None = None  # layout: int64 [nc], node numbers
    row_start: np.ndarray | None = None  # layout: int32 [nc + 1]
    row_layout: np.ndarray | None = None  # layout: int8 [R, 18]
    codes: np.ndarray | None = None  # layout: uint8 or uint16 [c, nc], column by column in memory
    config_feat: np.ndarray | None = None  # tile: float32 [c, 24]
    normalizer: np.ndarray | None = None  # tile: int64 [c]

    @property
    def row_node(self) -> np.ndarray:
        """int32 [R]: which of `config_nodes` each row is about."""
        counts = np.diff(self.row_start)
        return np.repeat(np.arange(len(counts), dtype=np.int32), counts)

    @property
    def target(self) -> np.ndarray:
        """float64 [c]: what is ranked. Runtime in ns (layout), runtime / normalizer (tile)."""
        if self.normalizer is None:
            return self.runtime.astype(np.float64)
        return self.runtime / self.normalizer

    @property
    def labelled(self) -> bool:
        return bool(self.runtime.any())

    @property
    def configs(self) -> int:
        return len(self.runtime)


def read_graph(file: GraphFile) -> Graph:
    """Read one file. Raises `DataError` naming the file if anything about it is wrong."""
    with open_source(file) as source:
        check_headers(file, source.headers)
        check_values(file, source)
        read, rounds = source.read, "config_runtime_rounds"
        graph = Graph(
            file=file,
            node_feat=read("node_feat"),
            opcode=read("node_opcode"),
            edges=np.ascontiguousarray(read("edge_index")),
            runtime=read("config_runtime"),
            rounds=read(rounds) if rounds in source.headers else None,
        )
        if file.tile:
            feat = read("config_feat")
            if not np.isfinite(feat).all():
                raise DataError(f"{file.path}: config_feat holds NaN or infinite values")
            return replace(graph, config_feat=feat, normalizer=read("config_runtime_normalizers"))
        configs, nodes, _ = source.headers[STREAMED].shape
        blocks = source.blocks(STREAMED, BLOCK_BYTES) if nodes else ()
        row_start, row_layout, codes = _read_configs(file, configs, nodes, blocks)
        return replace(
            graph, config_nodes=read("node_config_ids"),
            row_start=row_start, row_layout=row_layout, codes=codes,
        )


def _read_configs(
    file: GraphFile, configs: int, nodes: int, blocks: Iterable[tuple[int, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """row_start int32 [nc + 1], row_layout int8 [R, 18], codes [c, nc] of node_config_feat."""
    if nodes > MAX_NODES:
        raise DataError(f"{file.path}: {nodes:,} configurable nodes, at most {MAX_NODES:,} work")
    rows = KeyTable(nodes, KEYS)
    codes = np.empty((nodes, configs), np.uint8)
    for start, block in blocks:
        found = rows.codes_of(_keys(file, start, block)).reshape(block.shape[:2])
        if rows.count.max() > np.iinfo(codes.dtype).max + 1:
            codes = codes.astype(np.uint16 if codes.itemsize == 1 else np.uint32)
        codes[:, start : start + len(block)] = found.T
    row_start = np.cumsum([0, *rows.count]).astype(np.int32)
    for j in range(nodes):  # renumber, so that codes don't depend on the order of configurations
        order = np.argsort(rows.code[row_start[j] : row_start[j + 1]])
        if (order != np.arange(len(order))).any():
            codes[j] = order.astype(codes.dtype)[codes[j]]
    return row_start, _decode(rows.known % KEYS), codes.T


def _keys(file: GraphFile, start: int, block: np.ndarray) -> np.ndarray:
    """int64 [b * nc]: one exact number for each node and vector of a block float32 [b, nc, 18].

    `start` is the number of the block's first configuration.
    """
    whole = np.rint(block)
    if not (block.min() >= LOWEST and block.max() <= HIGHEST and (whole == block).all()):
        good = (block >= LOWEST) & (block <= HIGHEST) & (whole == block)
        config, node, column = np.argwhere(~good)[0]
        raise DataError(
            f"{file.path}: node_config_feat holds {block[config, node, column]:g} (configuration "
            f"{start + config}, configurable node {node}, column {column}): layouts are whole "
            f"numbers from {LOWEST} to {HIGHEST}"
        )
    slots = block.reshape(-1, COLUMNS) @ SLOT_WEIGHTS
    keys = (slots @ KEY_WEIGHTS).astype(np.int64).reshape(block.shape[:2])
    return (keys + (np.arange(block.shape[1]) * KEYS + KEY_OFFSET)).ravel()


def _decode(keys: np.ndarray) -> np.ndarray:
    """int8 [R, 18]: the vectors that `_keys` named."""
    digits = keys[:, None] // BASE ** np.arange(COLUMNS, dtype=np.int64) % BASE
    return (digits + LOWEST).astype(np.int8)


def decode(graph: Graph, configs: np.ndarray | slice = slice(None)) -> np.ndarray:
    """float32 [b, nc, 18]: ``node_config_feat`` of the chosen configurations, as in the file."""
    rows = graph.row_start[:-1] + graph.codes[configs].astype(np.int64)
    return graph.row_layout[rows].astype(np.float32)


def config_sum(graph: Graph, table: np.ndarray, chunk: int = 1 << 16) -> np.ndarray:
    """Sum of `table` over the rows of every configuration: one lookup a node.

    `table` [R] or [R, k], any real dtype; the result is float64 [c] or [c, k]. Nodes are added in
    order, so a result doesn't depend on `chunk` (a bound on the numbers worked on at once).
    """
    table = np.asarray(table, np.float64)
    out = np.zeros((graph.configs, *table.shape[1:]))
    step = max(1, chunk // max(1, int(np.prod(table.shape[1:]))))
    starts = graph.row_start
    for start in range(0, graph.configs, step):
        part, codes = out[start : start + step], graph.codes[start : start + step]
        looked_up = np.empty_like(part)
        for j in range(codes.shape[1]):
            values = table[starts[j] : starts[j + 1]]
            part += np.take(values, codes[:, j], axis=0, out=looked_up, mode="clip")
    return out


def pair_sum(
    graph: Graph, first: np.ndarray, second: np.ndarray, tables: list[np.ndarray]
) -> np.ndarray:
    """float64 [c]: sum over pairs p of ``tables[p][code at first[p], code at second[p]]``.

    `first` and `second` number configurable nodes (columns of `codes`); `tables[p]` is
    [rows of first[p], rows of second[p]]. Copies between two nodes are such a sum.
    """
    out = np.zeros(graph.configs)
    for a, b, table in zip(first, second, tables):
        flat = np.ascontiguousarray(table, np.float64)
        place = graph.codes[:, a].astype(np.int32) * flat.shape[1] + graph.codes[:, b]
        out += np.take(flat.ravel(), place)
    return out


def slot_rows(graph: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The distinct (configurable node, slot, layout) triples, S of them.

    Returns node int32 [S] (index into `config_nodes`), slot int8 [S] (index into `SLOTS`), layout
    int8 [S, 6] and row_slot int32 [R, 3]: the three triples of each row. A table over triples
    becomes one over rows by ``table[row_slot].sum(1)``.
    """
    node = np.repeat(graph.row_node, len(SLOTS))
    slot = np.tile(np.arange(len(SLOTS)), len(graph.row_layout))
    layout = graph.row_layout.reshape(-1, MAX_RANK)
    triples = np.column_stack([node, slot, layout])
    distinct, inverse = np.unique(triples, axis=0, return_inverse=True)
    return (
        distinct[:, 0].astype(np.int32), distinct[:, 1].astype(np.int8),
        distinct[:, 2:].astype(np.int8), inverse.reshape(-1, len(SLOTS)).astype(np.int32),
    )


def deduplicate(graph: Graph) -> tuple[Graph, np.ndarray, np.ndarray]:
    """The graph with each distinct configuration once, in order of first appearance.

    Runtimes of one configuration are combined by their median, rounded to whole ns (rounds and
    normalizers likewise, column by column). Returns (graph, inverse int64 [c], count
    int64 [distinct]): ``distinct.codes[inverse]`` are the codes of the file.
    """
    if graph.codes is not None:
        columns = graph.codes.T
    else:
        columns = [np.unique(col, return_inverse=True)[1] for col in graph.config_feat.T]
    ids = _number_rows(columns, graph.configs)
    _, first, inverse, count = np.unique(
        ids, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)  # ids are by value: number them by first appearance
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first, inverse, count = first[order], place[inverse], count[order]

    def median(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else _group_median(values, inverse, count)

    distinct = replace(
        graph, runtime=median(graph.runtime), rounds=median(graph.rounds),
        normalizer=median(graph.normalizer),
        codes=None if graph.codes is None else np.asfortranarray(graph.codes[first]),
        config_feat=None if graph.config_feat is None else graph.config_feat[first],
    )
    return distinct, inverse, count


def take(graph: Graph, configs: np.ndarray | slice) -> Graph:
    """The graph with some of its configurations, in the order that is asked for."""
    def chosen(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[configs]

    return replace(
        graph, runtime=graph.runtime[configs], rounds=chosen(graph.rounds),
        codes=None if graph.codes is None else np.asfortranarray(graph.codes[configs]),
        config_feat=chosen(graph.config_feat), normalizer=chosen(graph.normalizer),
    )


def _number_rows(columns, length: int) -> np.ndarray:
    """int64 [length]: equal numbers for equal rows. Mixed radix, so it is exact, unlike a hash."""
    ids, size = np.zeros(length, np.int64), 1
    for column in columns:
        radix = int(column.max()) + 1
        if size * radix >= 1 << 62:
            ids = np.unique(ids, return_inverse=True)[1]
            size = int(ids.max()) + 1
        ids = ids * radix + column
        size *= radix
    return ids


def _group_median(values: np.ndarray, group: np.ndarray, count: np.ndarray) -> np.ndarray:
    """int64 [groups] or [groups, r]: median of `values` [c] or [c, r] inside each group."""
    if values.ndim == 2:
        return np.column_stack([_group_median(col, group, count) for col in values.T])
    ordered = values[np.lexsort((values, group))]
    start = np.cumsum(count) - count
    low, high = ordered[start + (count - 1) // 2], ordered[start + count // 2]
    return low + (high - low + 1) // 2  # no overflow, exact in int64; halves round up
