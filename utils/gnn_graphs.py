"""A graph as the network sees it: numbers of nodes and of layout rows, and who hands on to whom.

A configuration stays a list of row numbers (`utils.coding`): each distinct (node, layouts) row is
described once, embedded once and looked up, so float32 [configurations, nodes, 18] never exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from utils.coding import BASE, LOWEST, Graph
from utils.cost_rows import SLOT, cost_rows
from utils.dataset import GraphFile
from utils.layout_rows import describe_slots
from utils.message_passing import node_inputs
from utils.roles import ROLES
from utils.structure import configurable
from utils.tensors import node_elements
from utils.tile_features import tile_features

PRUNE_NODES = 1000  # larger graphs are cut down to the neighbourhood of their configurable nodes
EXTRA_SLOT = (  # what the trees know of a slot and a network would have to find out
    "flops", "bytes", "is_set", "is_default", "inversions", "rank", "element_bytes",
    "tile_padding", "vector_padding", "full_lanes", "size_minor", "size_second", "size_major",
)  # fmt: skip
EXTRA_ROLES = ("role_minor", "role_second", "role_major")


@dataclass(frozen=True)
class GnnGraph:
    """n nodes (those that are kept), m edges, c configurations, R rows; float32 and int64."""

    file: GraphFile
    node: np.ndarray  # float32 [n, f]: what is said of every node
    opcode: np.ndarray  # int64 [n]
    edges: np.ndarray  # int64 [m, 2]: u consumes v
    row: np.ndarray  # float32 [R, r]: of every layout row; tile: of every configuration, R = c
    target: np.ndarray  # float64 [c]
    kept: np.ndarray  # int64 [n]: numbers of the nodes in the file
    config_nodes: np.ndarray | None = None  # layout: int64 [nc], numbers among the kept nodes
    row_node: np.ndarray | None = None  # layout: int64 [R], which node (of those kept) a row sets
    row_start: np.ndarray | None = None  # layout: int64 [nc + 1]
    codes: np.ndarray | None = None  # layout: uint8 or uint16 [c, nc]
    size: np.ndarray | None = None  # layout: float32 [nc], elements of a node's output, root of
    # the sum of squares 1: what cost tables weigh by

    @property
    def configs(self) -> int:
        return len(self.target)

    def rows_of(self, configs: np.ndarray) -> np.ndarray:
        """int64 [nc, b]: the layout row of every configurable node in each configuration."""
        return (self.codes[configs] + self.row_start[:-1]).T


def describe(graph: Graph, extra: bool, hops: int, prune_nodes: int = PRUNE_NODES) -> GnnGraph:
    """Describe a graph for the network.

    extra: also what the trees are told, see `row_columns` and `message_passing.node_inputs`. A
    layout graph of more than `prune_nodes` nodes keeps those within `hops` steps of a configurable
    node, whatever the direction. With as many hops as the network has layers, what it computes
    at configurable nodes stays the same.
    """
    n = len(graph.opcode)
    edges = np.asarray(graph.edges, np.int64).reshape(-1, 2)
    kept = np.arange(n)
    if graph.codes is not None and n > prune_nodes:
        kept = np.flatnonzero(neighbourhood(n, edges, graph.config_nodes, hops))
    place = np.full(n, -1)
    place[kept] = np.arange(len(kept))
    edges = place[edges]
    common = {
        "file": graph.file,
        "node": node_columns(graph, extra)[kept],
        "opcode": graph.opcode[kept].astype(np.int64),
        "edges": edges[(edges >= 0).all(1)],
        "target": graph.target,
        "kept": kept,
    }
    if graph.codes is None:
        return GnnGraph(row=tile_columns(graph, extra), **common)
    nodes = place[graph.config_nodes]
    elements = node_elements(graph)[graph.config_nodes]
    size = elements / max(1.0, float(np.sqrt((elements**2).sum())))
    return GnnGraph(
        row=row_columns(graph, extra), config_nodes=nodes, row_node=nodes[graph.row_node],
        row_start=graph.row_start.astype(np.int64), codes=graph.codes,
        size=size.astype(np.float32), **common,
    )  # fmt: skip


def neighbourhood(n: int, edges: np.ndarray, start: np.ndarray, hops: int) -> np.ndarray:
    """bool [n]: nodes at most `hops` edges from one of `start`, in either direction."""
    near = np.zeros(n, bool)
    near[start] = True
    consumer, producer = edges.T
    for _ in range(hops):
        further = near.copy()
        further[consumer[near[producer]]] = True
        further[producer[near[consumer]]] = True
        near = further
    return near


def node_columns(graph: Graph, extra: bool) -> np.ndarray:
    """float32 [n, f]: signed logarithms of all columns of the file, degrees, configurable or not.

    extra: also tensor sizes, work and opcode groups, the inputs of notebook 03.
    """
    n = len(graph.opcode)
    degrees = [np.bincount(ends, minlength=n) for ends in graph.edges.reshape(-1, 2).T]
    columns = [_log(graph.node_feat), _log(np.stack(degrees, 1)), configurable(graph)[:, None]]
    columns += [node_inputs(graph)] if extra else []
    return np.concatenate(columns, axis=1).astype(np.float32)


def row_columns(graph: Graph, extra: bool) -> np.ndarray:
    """float32 [R, r]: one-hot numbers of the three layouts of every row.

    extra: for each slot also EXTRA_SLOT, the roles of its minor-most, second-minor and major-most
    dimension, its tensor's size among the slots of the graph, and that size where the layout is
    not row-major: what the trees are told.
    """
    digits = graph.row_layout[:, :, None] == np.arange(LOWEST, LOWEST + BASE)
    columns = digits.reshape(len(digits), digits.shape[1] * BASE).astype(np.float32)
    if not extra:
        return columns
    slots, rows = describe_slots(graph), cost_rows(graph)
    named = dict(zip(rows.names, rows.features[rows.kind == SLOT].T))
    told = [named[name] for name in EXTRA_SLOT]
    told += [named[name] == role for name in EXTRA_ROLES for role in range(len(ROLES))]
    share = slots.elements / max(1.0, float(np.sqrt((rows.slot_elements**2).sum())))
    told += [share, share * (slots.is_set & ~slots.is_default)]
    of_slot = np.nan_to_num(np.stack(told, axis=1)).astype(np.float32)
    return np.concatenate([columns, *of_slot[slots.of_row].swapaxes(0, 1)], axis=1)


def tile_columns(graph: Graph, extra: bool) -> np.ndarray:
    """float32 [c, r]: signed logarithms of the file's columns; extra: of what trees are told."""
    values = graph.config_feat
    if extra:
        table = tile_features(graph)
        names = [name for name in table.columns if name.startswith("tile_")]
        values = table.select(names).to_numpy()
    return _log(np.nan_to_num(values)).astype(np.float32)


def _log(values: np.ndarray) -> np.ndarray:
    return np.sign(values) * np.log1p(np.abs(values))
