"""Which tensor each slot of a layout is about, and what every dimension does in the operation.

A layout configuration speaks of three slots: output, input and kernel. The output is the node's
own shape. Input and kernel are operands whose order the edge list does not keep: convolutions
tell them apart by window and dimension numbers (`utils.contraction`), dots by shapes alone,
because a dot's result is always [batch dimensions, free ones of the left, of the right operand].
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

import numpy as np

from utils.contraction import convolution_operands
from utils.schema import MAX_RANK, NODE_COLUMN, OPCODE_ID
from utils.tensors import node_dimensions, node_rank, operand_pair

ROLES = ("batch", "free", "spatial", "contracting", "other")
BATCH, FREE, SPATIAL, CONTRACTING, OTHER = range(len(ROLES))

# The dimension numbers that name one dimension: (slot, role, column).
_NAMED = tuple(
    (slot, role, NODE_COLUMN[f"convolution_dim_numbers_{name}_dim"])
    for slot, role, name in (
        (0, BATCH, "output_batch"),
        (0, FREE, "output_feature"),
        (1, BATCH, "input_batch"),
        (1, CONTRACTING, "input_feature"),
        (2, CONTRACTING, "kernel_input_feature"),
        (2, FREE, "kernel_output_feature"),
    )
)


def slot_tensors(graph, nodes: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The tensor of every slot of the configurable nodes, and the roles of its dimensions.

    `nodes` int64 [nc] are other nodes to look at, for graphs without configurable ones.

    Returns
    -------
    tensor: int64 [nc, 3], the node whose output the slot (output, input, kernel) is about; -1
        where there is none (the kernel of a reshape).
    roles: int8 [nc, 3, 6], index into ROLES of each dimension; OTHER where nothing is known.
    """
    asked = _what_layouts_ask(graph) if nodes is None else None
    nodes = graph.config_nodes if nodes is None else nodes
    first, last = operand_pair(graph)
    kind = graph.opcode[nodes]
    two = np.isin(kind, (OPCODE_ID["convolution"], OPCODE_ID["dot"])) & (first[nodes] >= 0)
    tensor = np.stack([nodes, first[nodes], np.where(two, last[nodes], -1)], axis=1)
    roles = np.full((len(nodes), 3, MAX_RANK), OTHER, np.int8)
    _fill_convolutions(graph, tensor, roles)
    _fill_dots(graph, tensor, roles, asked)
    return tensor, roles


def _fill_convolutions(graph, tensor, roles) -> None:
    found, data, kernel = convolution_operands(graph)
    place = np.full(len(graph.opcode), -1)
    place[found] = np.arange(len(found))
    at = place[tensor[:, 0]]
    mine = np.flatnonzero(at >= 0)
    at = at[mine]
    tensor[mine, 1], tensor[mine, 2] = data[at], kernel[at]
    within = np.arange(MAX_RANK) < node_rank(graph)[tensor[mine]][:, :, None]
    roles[mine] = np.where(within, SPATIAL, OTHER)
    for slot, role, column in _NAMED:
        dimension = graph.node_feat[tensor[mine, 0], column].astype(np.int64)
        roles[mine, slot, np.clip(dimension, 0, MAX_RANK - 1)] = role


def _fill_dots(graph, tensor, roles, asked) -> None:
    dims, rank = node_dimensions(graph).astype(np.int64), node_rank(graph)
    longest, highest = asked if asked else np.full((2, len(tensor), 3), -1)
    dots = np.flatnonzero((graph.opcode[tensor[:, 0]] == OPCODE_ID["dot"]) & (tensor[:, 1] >= 0))
    for j in dots:
        out, *operands = (tuple(dims[v, : rank[v]].tolist()) for v in tensor[j])
        known = [dot_roles(out, *operands), dot_roles(out, *operands[::-1])]
        suits = [
            int(4 * (highest[j, 1:] < ranks).sum() + (longest[j, 1:] == ranks).sum())
            for ranks in (rank[tensor[j, 1:]], rank[tensor[j, :0:-1]])
        ]
        # A draw is settled by the layouts' lengths, then by the order of the edge list.
        swap = (known[1] is not None, suits[1]) > (known[0] is not None, suits[0])
        if swap:
            tensor[j, 1:] = tensor[j, :0:-1].copy()
        for slot, listed in enumerate(known[int(swap)] or ()):
            roles[j, slot, : len(listed)] = listed


def _what_layouts_ask(graph) -> tuple[np.ndarray, np.ndarray]:
    """Longest list and highest dimension that any layout of a slot names, int64 [nc, 3] each."""
    layouts = graph.row_layout.reshape(-1, 3, MAX_RANK)
    starts = graph.row_start[:-1].astype(np.int64)
    if len(starts) == 0:
        return np.zeros((2, 0, 3), np.int64)
    longest = np.maximum.reduceat((layouts >= 0).sum(2), starts)
    return longest, np.maximum.reduceat(layouts.max(2).astype(np.int64), starts)


@lru_cache(maxsize=4096)
def dot_roles(out: tuple, lhs: tuple, rhs: tuple) -> tuple[tuple[int, ...], ...] | None:
    """Roles of the dimensions of ``out = dot(lhs, rhs)`` (three shapes), None if nothing fits.

    Every reading of the shapes as [B.., M.., N..], {B.., M.., K..} and {B.., K.., N..} is tried.
    Of those that fit one contracted dimension is preferred, then batch dimensions in front, then
    the plain product (contracting the last dimension of the left and the first of the right).
    """
    best = None
    for batches in range(min(map(len, (out, lhs, rhs))) + 1):
        for frees in range(len(out) - batches + 1):
            batch, left, right = out[:batches], out[batches:][:frees], out[batches + frees :]
            contracted = len(lhs) - batches - frees
            if contracted < 0 or contracted != len(rhs) - batches - len(right):
                continue
            right_ways = list(_readings(rhs, batch, right))
            for lhs_roles, lhs_cost, lhs_sizes in _readings(lhs, batch, left):
                for rhs_roles, rhs_cost, rhs_sizes in right_ways:
                    if lhs_sizes != rhs_sizes:
                        continue
                    cost = (contracted == 0, contracted, lhs_cost[0] + rhs_cost[0])
                    cost += (rhs_cost[1] - lhs_cost[1],)
                    if best is None or cost < best[0]:
                        out_roles = (BATCH,) * batches + (FREE,) * (len(out) - batches)
                        best = cost, (out_roles, lhs_roles, rhs_roles)
    return best and best[1]


def _readings(sizes: tuple, batch: tuple, free: tuple):
    """Ways to find the batch and the free dimensions in a shape; the rest is contracted.

    Yields (roles, (sum of batch positions, sum of contracted positions), contracted sizes).
    """
    places = range(len(sizes))
    for b in combinations(places, len(batch)):
        if tuple(sizes[i] for i in b) != batch:
            continue
        rest = [i for i in places if i not in b]
        for f in combinations(rest, len(free)):
            if tuple(sizes[i] for i in f) != free:
                continue
            roles = tuple(BATCH if i in b else FREE if i in f else CONTRACTING for i in places)
            contracted = [i for i in rest if i not in f]
            yield roles, (sum(b), sum(contracted)), sorted(sizes[i] for i in contracted)
