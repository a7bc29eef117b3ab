"""The rows whose costs add up to a configuration's score, and what the trees may know about each.

Four kinds of rows, each shared by all configurations that contain it:

- slot: (configurable node, slot, layout), slot = output, input, kernel;
- pair: (maker's output layout, consumer's operand layout), both chosen by the configuration;
- fixed: (what a maker that isn't configurable hands over, consumer's operand layout);
- out: (output layout, who reads it without being configurable).

A configuration takes one row from each column (`Column`): a lookup by the code of one node, or by
the codes of two. Columns from which every configuration takes the same row are left out: they
add the same cost to all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from utils.joint_sum import joint_sum
from utils.layout_edges import READERS, EdgeRows, Edges, edge_rows, readers, trace_edges
from utils.layout_rows import SlotRows, describe_slots
from utils.layout_tables import Columns, slot_chains
from utils.node_costs import node_flops
from utils.opcode_groups import opcode_group
from utils.roles import ROLES
from utils.schema import CONFIGURABLE, NODE_COLUMN, OPCODE_ID
from utils.tensors import element_bytes

# Raised whenever a row or a feature changes its meaning: a saved model refuses other versions.
ROW_VERSION = 2
KINDS = ("slot", "pair", "fixed", "out")
SLOT, PAIR, FIXED, OUT = range(len(KINDS))
ENDS = ("minor", "second", "major")
_DIMENSION_NUMBERS = [name for name in NODE_COLUMN if name.startswith("convolution_dim_numbers")
                      and not name[-1].isdigit()]  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One term of the sum: the row that a configuration takes by the codes of one or two nodes."""

    nodes: tuple[int, ...]  # indices into config_nodes
    rows: np.ndarray  # int32, one axis of codes for each node


@dataclass(frozen=True)
class CostRows:
    """Q rows of one graph."""

    columns: list[Column]  # T of them
    names: tuple[str, ...]  # of the features
    features: np.ndarray  # float32 [Q, features], NaN where a feature means nothing
    kind: np.ndarray  # int8 [Q], index into KINDS
    elements: np.ndarray  # float64 [Q]: of the tensor that the row is about
    slot_elements: np.ndarray  # float64 [3 nc]: of the tensor of every slot of the graph


def cost_rows(graph, vectors: np.ndarray | None = None) -> CostRows:
    """All rows of a layout graph. `vectors` float [n, k]: more features of every node (mp_i)."""
    slots = describe_slots(graph)
    edges = trace_edges(graph, slots)
    facing = edge_rows(edges, slots)
    reader, out_slot = _out_rows(graph, slots)
    slot_part = _slot_features(graph, slots, vectors)
    edge_part = _edge_features(graph, slots, edges, facing)
    out_part = {f"out_{name}": reader == i for i, name in enumerate(READERS)}
    about = np.concatenate([np.arange(len(slots.node)), facing.used, out_slot])
    many = (len(slots.node), len(facing.edge), len(reader))
    kind = np.repeat([SLOT, PAIR, OUT], many).astype(np.int8)
    kind[many[0] : many[0] + many[1]][facing.made < 0] = FIXED
    table = {"kind": kind} | {name: values[about] for name, values in slot_part.items()}
    start = 0
    for part, length in zip(({}, edge_part, out_part), many):
        for name, values in part.items():
            table[name] = np.full(sum(many), np.nan)
            table[name][start : start + length] = values
        start += length
    return CostRows(
        columns=_columns(graph, slots, edges, facing, reader, out_slot),
        names=tuple(table),
        features=np.column_stack([*table.values()]).astype(np.float32),
        kind=kind,
        elements=slots.elements[about],
        slot_elements=slots.elements[np.minimum(slots.start[:-1], len(slots.node) - 1)],
    )


def terms(graph, rows: CostRows, configs: np.ndarray | slice = slice(None)) -> np.ndarray:
    """int32 [b, T]: the rows that each of the chosen configurations contains."""
    codes = graph.codes[configs]
    found = np.empty((len(rows.columns), len(codes)), np.int32)
    for column, place in zip(rows.columns, found):
        place[:] = column.rows[tuple(codes[:, node] for node in column.nodes)]
    return found.T


def score_rows(graph, rows: CostRows, value: np.ndarray, threads: int = 1) -> np.ndarray:
    """float64 [c]: the sum of `value` [Q] over the rows of every configuration of the graph."""
    tables: dict[tuple[int, ...], np.ndarray] = {}
    for column in rows.columns:
        cost = value[column.rows]
        tables[column.nodes] = tables[column.nodes] + cost if column.nodes in tables else cost
    return joint_sum(graph.codes, tables, threads)


def row_weights(rows: CostRows, gamma: float) -> np.ndarray:
    """float64 [Q]: elements ** gamma over the root of their sum of squares over all slots.

    Gamma 0 stands for the logarithm, the limit of (elements ** gamma - 1) / gamma.
    """
    def power(elements: np.ndarray) -> np.ndarray:
        return elements**gamma if gamma else np.log2(1.0 + elements)

    total = np.sqrt((power(rows.slot_elements) ** 2 * (rows.slot_elements > 0)).sum())
    return np.where(rows.elements > 0, power(rows.elements), 0.0) / (total or 1.0)


def without(rows: CostRows, kinds: tuple[str, ...] = (), prefixes: tuple[str, ...] = ()):
    """The same rows with no weight for some `kinds` and without the features of some prefixes."""
    gone = np.isin(rows.kind, [KINDS.index(kind) for kind in kinds])
    kept = [i for i, name in enumerate(rows.names) if not name.startswith(prefixes)]
    return replace(
        rows, elements=np.where(gone, 0.0, rows.elements), features=rows.features[:, kept],
        names=tuple(rows.names[i] for i in kept),
    )  # fmt: skip


def _columns(graph, slots: SlotRows, edges: Edges, facing: EdgeRows, reader, out_slot):
    """The columns from which configurations take different rows."""
    columns = []
    codes = [slice(*graph.row_start[j : j + 2]) for j in range(len(graph.config_nodes))]
    of_row = slots.of_row.astype(np.int64)
    for j, here in enumerate(codes):
        columns += [Column((j,), of_row[here, k]) for k in range(of_row.shape[1])]
    base = len(slots.node)
    for e, (j, k, m) in enumerate(zip(edges.node, edges.slot, edges.maker)):
        group = 3 * j + k
        used = of_row[codes[j], k] - slots.start[group]
        if m < 0:
            columns.append(Column((j,), base + facing.start[e] + used))
            continue
        many = slots.start[group + 1] - slots.start[group]
        made = (of_row[codes[m], 0] - slots.start[3 * m]) * many
        columns.append(Column((m, j), base + facing.start[e] + made[:, None] + used))
    base += len(facing.edge)
    node = slots.node[out_slot]
    first = np.flatnonzero(np.diff(np.column_stack([node, reader]), axis=0, prepend=-1).any(1))
    for place in first:
        j = node[place]
        columns.append(Column((j,), base + place + of_row[codes[j], 0] - slots.start[3 * j]))
    return [column for column in map(_simplest, columns) if column is not None]


def _simplest(column: Column) -> Column | None:
    """Without the nodes that have no say; None where all rows are the same."""
    rows = column.rows
    kept = [axis for axis in range(rows.ndim) if (rows != rows.take([0], axis)).any()]
    if not kept:
        return None
    rows = rows[tuple(slice(None) if axis in kept else 0 for axis in range(rows.ndim))]
    return Column(tuple(column.nodes[axis] for axis in kept), rows.astype(np.int32))


def _out_rows(graph, slots: SlotRows) -> tuple[np.ndarray, np.ndarray]:
    """(reader, output slot row) of every out row, by node, reader and layout; int64 each."""
    node, reader = np.nonzero(readers(graph))
    first, last = slots.start[3 * node].astype(np.int64), slots.start[3 * node + 1]
    many = last - first
    within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    return np.repeat(reader, many), np.repeat(first, many) + within


def _slot_features(graph, slots: SlotRows, vectors) -> Columns:
    """What every row says about a slot and its operation, [S] each."""
    nodes = graph.config_nodes[slots.node]
    feat = graph.node_feat[nodes].astype(np.float64)
    code = graph.opcode[nodes]
    convolution = code == OPCODE_ID["convolution"]
    chain = slot_chains(graph, slots)

    def size(name: str) -> np.ndarray:
        return _log(feat[:, NODE_COLUMN[name]])

    columns: Columns = {
        "slot": slots.slot,
        "opcode": np.select([code == OPCODE_ID[o] for o in CONFIGURABLE], range(3), -1),
        "flops": _log(node_flops(graph)[nodes]),
        "bytes": _log(slots.bytes),
        "chain": np.log2(1.0 + chain / np.maximum(slots.bytes, 1.0)),
        "window": size("window_size_product"),
        "stride": size("window_stride_product"),
        "window_dilation": size("window_window_dilation_product"),
        "base_dilation": size("window_base_dilation_product"),
        "groups": size("feature_group_count"),
        "batch_groups": size("batch_group_count"),
        "is_set": slots.is_set,
        "is_default": slots.is_default,
        "inversions": slots.inversions,
        "rank": slots.rank,
        "element_bytes": np.where(slots.tensor >= 0, element_bytes(graph)[slots.tensor], np.nan),
        "tile_padding": _log(slots.tile_padding),
        "vector_padding": _log(slots.vector_padding),
        "full_lanes": slots.full_lanes,
    }
    columns |= {f"size_{end}": _log(slots.sizes[:, i]) for i, end in enumerate(ENDS)}
    columns |= {f"role_{end}": slots.roles[:, i] for i, end in enumerate(ENDS)}
    for name in _DIMENSION_NUMBERS:
        short = name.removeprefix("convolution_dim_numbers_")
        columns[f"role_number_{short}"] = np.where(convolution, feat[:, NODE_COLUMN[name]], np.nan)
    for i, values in enumerate([] if vectors is None else np.asarray(vectors).T):
        columns[f"mp_{i}"] = values[nodes]
    return columns


def _edge_features(graph, slots: SlotRows, edges: Edges, facing: EdgeRows) -> Columns:
    """What an edge row says besides its operand slot, [P] each."""
    at = facing.edge
    chosen, made = facing.made >= 0, facing.made

    def theirs(values: np.ndarray, otherwise: float = np.nan) -> np.ndarray:
        return np.where(chosen, values[made], otherwise)

    copied = _log(facing.bytes)
    padding = theirs(_log(slots.tile_padding))
    order = edges.order[at].astype(np.int64)
    row_major = (np.diff(np.where(order < 0, -9, order), axis=1) <= 0).all(1)
    columns: Columns = {
        "copied": facing.copied,
        "copied_minor": facing.minor_differs,
        "copied_bytes": facing.copied * copied,
        "handed_on": facing.handed_on,
        "maker_kind": edges.kind[at],
        "maker_group": opcode_group(graph.opcode[edges.source[at]]),
        "maker_set": theirs(slots.is_set),
        "maker_default": np.where(chosen, slots.is_default[made], row_major),
        "maker_padding": padding,
        "padding_ratio": _log(slots.tile_padding)[facing.used] - padding,
        "hops": edges.hops[at],
        "fan_out": _log(edges.fan_out[at]),
    }
    columns |= {f"maker_{end}": theirs(_log(slots.sizes[:, i])) for i, end in enumerate(ENDS[:2])}
    roles = slots.roles.astype(np.float64)
    return columns | {f"role_maker_{end}": theirs(roles[:, i]) for i, end in enumerate(ENDS[:2])}


def _log(values: np.ndarray) -> np.ndarray:
    return np.log2(np.maximum(np.asarray(values, np.float64), 1.0))
