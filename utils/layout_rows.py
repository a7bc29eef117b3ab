"""The language of a layout: what every (configurable node, slot, layout) means.

A configuration is one row (node, 18 numbers) for each configurable node, and a row is three slots
(output, input, kernel) of six numbers. Distinct slots are few, so everything that can be said of
a layout is said once for each slot row and looked up for each configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from utils.coding import config_sum, slot_rows
from utils.roles import OTHER, slot_tensors
from utils.schema import MAX_RANK, SLOTS, UNSET
from utils.tensors import element_bytes, listed, node_dimensions, node_elements, node_rank

TILE = (8, 128)  # sublanes x lanes of a TPU register: filled by the two minor-most dimensions
VECTOR_BYTES = 32  # one 256-bit register of a CPU


@dataclass(frozen=True)
class SlotRows:
    """Distinct (configurable node, slot, layout) triples in ascending order, S of them.

    `sizes` and `roles` are about the minor-most, the second-minor and the major-most dimension;
    where the rank has no such dimension the size is 1 and the role OTHER. Dimensions of size 1
    move no data: `moved`, `is_default` and `inversions` look at the others only.
    """

    of_row: np.ndarray  # int32 [R, 3]: the three slot rows of each row of the graph
    start: np.ndarray  # int32 [3 nc + 1]: slot k of configurable node j begins at start[3 j + k]
    node: np.ndarray  # int32 [S]: index into config_nodes
    slot: np.ndarray  # int8 [S]: index into schema.SLOTS
    tensor: np.ndarray  # int64 [S]: node whose output the slot is about; -1: none
    layout: np.ndarray  # int8 [S, 6] as in the file, -1 for nothing
    order: np.ndarray  # int8 [S, 6] completed, minor to major, -1 beyond the rank
    moved: np.ndarray  # int8 [S, 6] the order without dimensions of size 1, -1 behind it
    rank: np.ndarray  # int64 [S]
    is_set: np.ndarray  # bool [S]; False: the compiler decides
    is_default: np.ndarray  # bool [S]: the data lie in row-major order; so too if not set
    inversions: np.ndarray  # float64 [S]: share of pairs of dimensions against row-major
    sizes: np.ndarray  # int64 [S, 3]
    roles: np.ndarray  # int8 [S, 3]: index into roles.ROLES
    elements: np.ndarray  # float64 [S]: of the tensor; 0 where there is none
    bytes: np.ndarray  # float64 [S]
    tile_padding: np.ndarray  # float64 [S]: volume in whole 8 x 128 tiles over volume, >= 1
    vector_padding: np.ndarray  # float64 [S]: volume in whole CPU vectors over volume, >= 1
    full_lanes: np.ndarray  # bool [S]: the minor-most size is a multiple of 128


def describe_slots(graph) -> SlotRows:
    """All slot rows of a layout graph."""
    node, slot, layout, of_row = slot_rows(graph)
    tensors, roles = slot_tensors(graph)
    tensor, roles = tensors[node, slot], roles[node, slot]
    there = tensor >= 0
    dims = np.where(there[:, None], node_dimensions(graph)[tensor], 0).astype(np.int64)
    rank = np.where(there, node_rank(graph)[tensor], layout.max(1, initial=-1) + 1)
    elements = np.where(there, node_elements(graph)[tensor], 0.0)
    width = np.where(there, element_bytes(graph)[tensor], 0.0)
    order = complete_order(layout, rank)
    moved = _without_units(order, dims)
    last = order[np.arange(len(order)), np.maximum(rank - 1, 0)]
    ends = np.stack([order[:, 0], order[:, 1], last], axis=1).astype(np.int64)
    inversions = _inversions(moved)
    sizes = np.maximum(_at(dims, ends, 1), 1)
    lanes = np.maximum(VECTOR_BYTES // np.maximum(width, 1), 1)
    rows = np.where(rank > 1, TILE[0], 1)  # a vector has no second dimension to pad
    return SlotRows(
        of_row=of_row,
        start=_starts(node, slot, tensors),
        node=node,
        slot=slot,
        tensor=tensor,
        layout=layout,
        order=order,
        moved=moved,
        rank=rank,
        is_set=layout[:, 0] >= 0,
        is_default=inversions == 0,
        inversions=inversions,
        sizes=sizes,
        roles=_at(roles, ends, OTHER),
        elements=elements,
        bytes=elements * width,
        tile_padding=_padding(sizes[:, 0], TILE[1]) * _padding(sizes[:, 1], rows),
        vector_padding=_padding(sizes[:, 0], lanes),
        full_lanes=sizes[:, 0] % TILE[1] == 0,
    )


def complete_order(layout: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Full orders, minor to major, from lists that may name only the minor-most dimensions.

    `layout` int8 [S, 6] is padded with -1, `rank` is int [S]. Dimensions that are not listed
    follow in descending order, so an empty list becomes row-major. Returns int8 [S, 6], -1
    beyond the rank.
    """
    dimension = np.arange(MAX_RANK)
    within = dimension < np.asarray(rank)[:, None]
    place = np.tile(2 * MAX_RANK - dimension, (len(layout), 1))
    row, position = np.nonzero(layout >= 0)
    place[row, layout[row, position]] = position
    order = np.argsort(np.where(within, place, 3 * MAX_RANK), axis=1, kind="stable")
    return np.where(within, order, -1).astype(np.int8)


def stated_orders(graph) -> np.ndarray:
    """The layout of every node's output in the program itself, int8 [n, 6] like `SlotRows.moved`.

    It is the true one for parameters. Where the columns hold none, it is row-major.
    """
    dims, rank = node_dimensions(graph).astype(np.int64), node_rank(graph)
    within = np.arange(MAX_RANK) < rank[:, None]
    stated = np.where(within, graph.node_feat[:, listed("layout_minor_to_major")], -1)
    sorted_ = np.sort(np.where(within, stated, MAX_RANK), axis=1)
    valid = (sorted_ == np.where(within, np.arange(MAX_RANK), MAX_RANK)).all(1)
    stated = np.where(valid[:, None], stated, -1).astype(np.int8)
    return _without_units(complete_order(stated, rank), dims)


def default_config(graph) -> int | None:
    """The configuration that leaves every layout to the compiler, None where a graph lacks it."""
    unset = (graph.row_layout == UNSET).all(1)
    left = np.ones(graph.configs, bool)
    for j, start in enumerate(graph.row_start[:-1]):
        left &= unset[start + graph.codes[:, j].astype(np.int64)]
    found = np.flatnonzero(left)
    return int(found[0]) if len(found) else None


def byte_count(graph) -> np.ndarray:
    """The untrained floor, float64 [c]; larger means slower.

    Layout: bytes of the slots that are set to a layout which is not row-major. Tile: the number
    of tiles that cover the output (`utils.tile_features.tile_count`).
    """
    if graph.codes is None:
        from utils.tile_features import tile_count  # it needs nothing of layouts

        return tile_count(graph)
    slots = describe_slots(graph)
    cost = np.where(slots.is_set & ~slots.is_default, slots.bytes, 0.0)
    return config_sum(graph, cost[slots.of_row].sum(1))


def _starts(node, slot, tensors) -> np.ndarray:
    groups = np.arange(len(SLOTS) * len(tensors) + 1)
    return np.searchsorted(node.astype(np.int64) * len(SLOTS) + slot, groups).astype(np.int32)


def _without_units(order: np.ndarray, dims: np.ndarray) -> np.ndarray:
    """The order with dimensions of size 1 taken out; -1 behind the others."""
    drop = (order < 0) | (_at(dims, order.astype(np.int64), 1) == 1)
    front = np.argsort(drop, axis=1, kind="stable")
    moved = np.take_along_axis(np.where(drop, -1, order), front, axis=1)
    return moved.astype(np.int8)


def _inversions(order: np.ndarray) -> np.ndarray:
    """Share of pairs of dimensions in ascending order; row-major (descending) has none."""
    wrong, pairs = np.zeros(len(order)), np.zeros(len(order))
    for a in range(MAX_RANK):
        for b in range(a + 1, MAX_RANK):
            both = order[:, b] >= 0
            wrong += both & (order[:, a] < order[:, b])
            pairs += both
    return wrong / np.maximum(pairs, 1)


def _at(table: np.ndarray, dimension: np.ndarray, missing: int) -> np.ndarray:
    """table[i, dimension[i, p]], `missing` where the dimension is -1."""
    found = np.take_along_axis(table, np.maximum(dimension, 0), axis=1)
    return np.where(dimension >= 0, found, missing)


def _padding(size: np.ndarray, unit: np.ndarray | int) -> np.ndarray:
    return -(-size // unit) * unit / size
