"""Who hands a tensor to whom, and where two facing layouts force a copy.

An edge joins an operand slot of a configurable node with the tensor's maker, found upwards through
operations that take any layout: element-wise ones that keep the shape, and transposes, which only
rename dimensions. The maker may be configurable (its output layout depends on the configuration),
given from outside (parameters, constants) or any other operation; these two keep the layout that
the program states. Going down, `readers` says who reads an output without being configurable.

Everything about an edge is said once for each edge row, a pair of facing slot rows, and looked up
for each configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from utils.layout_rows import SlotRows, stated_orders
from utils.schema import MAX_RANK, NODE_COLUMN, OPCODE_ID
from utils.tensors import listed, node_dimensions, opcode_mask, operand_edges

# One output element from the operands' elements at the same place: layouts pass through.
ELEMENTWISE = opcode_mask(
    "abs add and atan2 bitcast-convert cbrt ceil clamp compare complex convert copy cosine "
    "count-leading-zeros divide exponential exponential-minus-one floor imag is-finite log "
    "log-plus-one logistic maximum minimum multiply negate not or popcnt power real "
    "reduce-precision remainder round-nearest-afz round-nearest-even rsqrt select shift-left "
    "shift-right-arithmetic shift-right-logical sign sine sqrt stochastic-convert subtract tan "
    "tanh xor"
)
GIVEN = opcode_mask("parameter constant get-tuple-element iota infeed")
KINDS = ("configurable", "given", "other")
CONFIGURABLE_MAKER, GIVEN_MAKER, OTHER_MAKER = range(len(KINDS))
MAX_MAKERS = 3  # of one tensor, the nearest first; a sum of many terms has many
READERS = ("root", "reduce", "move", "other")  # who reads an output and isn't configurable
_REDUCE = opcode_mask("reduce reduce-window all-reduce reduce-scatter sort select-and-scatter")
_MOVE = opcode_mask(
    "broadcast slice dynamic-slice dynamic-update-slice concatenate pad reverse gather "
    "scatter bitcast reshape"
)


@dataclass(frozen=True)
class Edges:
    """E edges from the maker of a tensor to an operand slot; arrays [E] unless said otherwise.

    An edge whose maker is configurable has one edge row for each pair (layout of the maker's
    output, layout of the slot), any other edge one for each layout of the slot.
    """

    node: np.ndarray  # int64: consumer, index into config_nodes
    slot: np.ndarray  # int64: 1 input, 2 kernel
    source: np.ndarray  # int64: node number of the maker
    maker: np.ndarray  # int64: the maker's index into config_nodes, -1 if not configurable
    kind: np.ndarray  # int64: index into KINDS
    hops: np.ndarray  # int64: operations in between
    names: np.ndarray  # int8 [E, 6]: the maker's name of each dimension of the slot's tensor
    fan_out: np.ndarray  # int64: edges with this maker
    order: np.ndarray  # int8 [E, 6]: the layout stated for the maker, like SlotRows.moved


@dataclass(frozen=True)
class EdgeRows:
    """P edge rows in order of their edges; arrays [P] unless said otherwise."""

    start: np.ndarray  # int64 [E + 1]: rows of edge e are start[e]..start[e + 1]
    edge: np.ndarray  # int64
    used: np.ndarray  # int64: slot row of the consumer
    made: np.ndarray  # int64: slot row of a configurable maker's output, else -1
    copied: np.ndarray  # bool: the slot is set and wants an order that the maker did not make
    minor_differs: np.ndarray  # bool: the minor-most dimensions differ (of those larger than 1)
    handed_on: np.ndarray  # bool: not row-major, and the slot leaves the choice to the compiler
    bytes: np.ndarray  # float64: of the tensor; a copy reads and writes them


def trace_edges(graph, slots: SlotRows) -> Edges:
    """All edges of a layout graph, by consumer and slot."""
    makers, kinds = _makers(graph)
    place = np.full(len(graph.opcode), -1)
    place[graph.config_nodes] = np.arange(len(graph.config_nodes))
    rows = []
    heads = slots.start[:-1]
    for j, slot, tensor in zip(slots.node[heads], slots.slot[heads], slots.tensor[heads]):
        if slot > 0 and tensor >= 0:
            for source, hops, names in makers[tensor]:
                rows.append((j, slot, source, place[source], kinds[source], hops, *names))
    table = np.array(rows, np.int64).reshape(-1, 6 + MAX_RANK)
    node, slot, source, maker, kind, hops = table[:, :6].T
    fan_out = np.bincount(source, minlength=len(graph.opcode))[source]
    order = stated_orders(graph)[source]
    names = table[:, 6:].astype(np.int8)
    return Edges(node, slot, source, maker, kind, hops, names, fan_out, order)


def edge_rows(edges: Edges, slots: SlotRows) -> EdgeRows:
    """The pairs of facing layouts of every edge, and what they imply."""
    group = 3 * edges.node + edges.slot
    first, many = slots.start[group].astype(np.int64), np.diff(slots.start)[group]
    theirs = 3 * np.maximum(edges.maker, 0)
    configurable = edges.maker >= 0
    other_first = np.where(configurable, slots.start[theirs], -1)
    other_many = np.where(configurable, np.diff(slots.start)[theirs], 1)
    start = np.concatenate([[0], np.cumsum(many.astype(np.int64) * other_many)])
    edge = np.repeat(np.arange(len(many)), np.diff(start))
    within = np.arange(start[-1]) - start[edge]
    used = first[edge] + within % many[edge]
    made = np.where(configurable[edge], other_first[edge] + within // many[edge], -1)
    made_order = np.where(made[:, None] >= 0, slots.moved[made], edges.order[edge])
    wanted = slots.moved[used]
    names = np.take_along_axis(edges.names[edge], np.maximum(wanted, 0).astype(np.int64), axis=1)
    wanted = np.where(wanted >= 0, names, -1)
    differs = (made_order != wanted).any(1)
    is_set = slots.is_set[used]
    return EdgeRows(
        start=start,
        edge=edge,
        used=used,
        made=made,
        copied=is_set & differs,
        minor_differs=is_set & (made_order[:, 0] != wanted[:, 0]),
        handed_on=~is_set & (made >= 0) & ~slots.is_default[made],
        bytes=slots.bytes[used],
    )


def edge_sums(
    graph, edges: Edges, rows: EdgeRows, slots: SlotRows, table: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of an edge-row quantity over the edges of each configuration, in two parts.

    `table` float64 [P, k]. Returns (from_rows [R, k], pairs [c, k]): edges whose maker is not
    configurable depend on the consumer's row alone, so they are handed back as a table over rows,
    to be summed with others by `config_sum`; the rest is summed here, a lookup for each edge.
    """
    table = np.asarray(table, np.float64)
    quantities = table.shape[1]
    from_slots = np.zeros((len(slots.node), quantities))
    fixed = rows.made < 0
    np.add.at(from_slots, rows.used[fixed], table[fixed])
    pairs = np.zeros((graph.configs, quantities))
    step = max(1, (1 << 16) // max(1, quantities))
    facing = np.flatnonzero(edges.maker >= 0)
    lookups = [_pair_lookup(graph, edges, rows, slots, e) for e in facing]
    for begin in range(0, graph.configs, step):
        codes = graph.codes[begin : begin + step]
        part = pairs[begin : begin + step]
        for e, (made, used) in zip(facing, lookups):
            place = made[codes[:, edges.maker[e]]] + used[codes[:, edges.node[e]]]
            part += table[place]
    return from_slots[slots.of_row].sum(1), pairs


def _pair_lookup(graph, edges, rows, slots, e) -> tuple[np.ndarray, np.ndarray]:
    """Two small tables, by the codes of maker and consumer, that add up to the edge row."""
    j, k, m = edges.node[e], edges.slot[e], edges.maker[e]
    many = slots.start[3 * j + k + 1] - slots.start[3 * j + k]
    here = slice(*graph.row_start[j : j + 2])
    there = slice(*graph.row_start[m : m + 2])
    used = slots.of_row[here, k].astype(np.int64) - slots.start[3 * j + k]
    made = slots.of_row[there, 0].astype(np.int64) - slots.start[3 * m]
    return rows.start[e] + made * many, used


def readers(graph) -> np.ndarray:
    """bool [nc, 4]: does a non-configurable operation of each of READERS read the output?

    Found downwards through the operations that take any layout.
    """
    total = len(graph.opcode)
    code = graph.opcode
    here = np.zeros((total, len(READERS)), bool)
    here[:, 0] = graph.node_feat[:, NODE_COLUMN["is_root"]] > 0
    configurable = np.zeros(total, bool)
    configurable[graph.config_nodes] = True
    own = np.stack([code == OPCODE_ID["tuple"], _REDUCE[code], _MOVE[code]], axis=1)
    own = np.column_stack([own, ~own.any(1)])
    passing = _passes(graph)
    edges = operand_edges(graph)
    for e in np.argsort(-edges[:, 0], kind="stable"):  # consumers before what they read
        user, maker = edges[e]
        if passing[e]:
            here[maker] |= here[user]
        elif not configurable[user]:
            here[maker] |= own[user]
    return here[graph.config_nodes]


def _makers(graph) -> tuple[list[list[tuple[int, int, tuple]]], np.ndarray]:
    """For every node the makers [(node, hops, names)] of its output, and every node's kind.

    names[d] is the dimension of the maker's output that dimension d of the node's output is.
    """
    total = len(graph.opcode)
    kinds = np.where(GIVEN[graph.opcode], GIVEN_MAKER, OTHER_MAKER)
    kinds[graph.config_nodes] = CONFIGURABLE_MAKER
    behind: list[list[int]] = [[] for _ in range(total)]
    for user, maker in operand_edges(graph)[_passes(graph)].tolist():
        behind[user].append(maker)
    turned = np.flatnonzero(graph.opcode == OPCODE_ID["transpose"])
    turns = dict(zip(turned.tolist(), graph.node_feat[turned, listed("dimensions")].astype(int)))
    same = tuple(range(MAX_RANK))
    makers: list[list[tuple[int, int, tuple]]] = []
    for node in range(total):  # topological order: operands come first
        found: dict[int, tuple[int, tuple]] = {}
        for operand in behind[node]:
            for source, hops, names in makers[operand]:
                if node in turns:
                    names = tuple(names[d] for d in turns[node])
                if source not in found or hops + 1 < found[source][0]:
                    found[source] = (hops + 1, names)
        near = sorted(found.items(), key=lambda item: (kinds[item[0]], item[1][0]))
        makers.append([(v, *how) for v, how in near[:MAX_MAKERS]] or [(node, 0, same)])
    return makers, kinds


def _passes(graph) -> np.ndarray:
    """bool [m']: operand edges through which a layout passes, see the top of this file."""
    user, maker = operand_edges(graph).T
    dims = node_dimensions(graph)
    configurable = np.zeros(len(dims), bool)
    configurable[graph.config_nodes] = True
    same = (dims[user] == dims[maker]).all(1) & ELEMENTWISE[graph.opcode[user]]
    turned = graph.opcode[user] == OPCODE_ID["transpose"]
    return (same | turned) & (dims[user] > 0).any(1) & ~configurable[user]
