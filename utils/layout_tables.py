"""What is summed over a configuration: named quantities of every row and of every edge row.

Sums of bytes are divided by the bytes of all slots of the graph, sums of FLOPs by the FLOPs of its
configurable nodes and counts by their number, so that large and small graphs speak one language.
A slot is "odd" if it is set to a layout that is not row-major.
"""

from __future__ import annotations

import numpy as np

from utils.layout_edges import ELEMENTWISE, GIVEN, KINDS, READERS, EdgeRows, Edges
from utils.layout_rows import SlotRows
from utils.recompute import fused_work, repeated_work
from utils.roles import BATCH, CONTRACTING, FREE, ROLES
from utils.schema import CONFIGURABLE, MAX_RANK, OPCODE_ID, SLOTS

Columns = dict[str, np.ndarray]

# The roles that a dimension can have in each slot (output, input, kernel) of an operation.
ROLES_OF = {
    "convolution": (
        ("batch", "free", "spatial"),
        ("batch", "contracting", "spatial"),
        ("contracting", "free", "spatial"),
    ),
    "dot": (
        ("batch", "free"),
        ("batch", "free", "contracting"),
        ("batch", "free", "contracting"),
    ),
}


class Scale:
    """Totals of a graph that sums are divided by; 1 where the total is 0."""

    def __init__(self, slots: SlotRows, flops: np.ndarray) -> None:
        heads = slots.start[:-1]
        self.bytes = float(slots.bytes[heads].sum()) or 1.0
        self.flops = float(flops.sum()) or 1.0
        self.nodes = float(len(flops)) or 1.0


def node_columns(graph, slots: SlotRows, flops: np.ndarray) -> Columns:
    """Quantities of the rows, float64 [R] each; `flops` float64 [nc] of the configurable nodes."""
    scale = Scale(slots, flops)
    kind = graph.opcode[graph.config_nodes]
    weight = slots.bytes / scale.bytes  # [S]
    work = (flops / scale.flops)[slots.node]
    odd = slots.is_set & ~slots.is_default
    rows: Columns = {}

    def add(name: str, value: np.ndarray) -> None:
        """A quantity of slot rows, summed over the three slots of a row."""
        rows[name] = value[slots.of_row].sum(1)

    add("node_byte_count", odd * weight)
    add("node_odd_count", odd / scale.nodes)
    add("node_odd_work", odd * work)
    add("node_odd_root", odd * np.sqrt(weight))
    add("node_inversions", slots.inversions * slots.is_set * weight)
    # A product takes a transposed matrix as it is; tensors of more dimensions have to be moved.
    deep = odd & ((slots.moved >= 0).sum(1) > 2)
    minor_moves = slots.moved[:, 0] != slots.moved.max(1)
    add("node_deep_bytes", deep * weight)
    add("node_deep_count", deep / scale.nodes)
    add("node_deep_inversions", slots.inversions * deep * weight)
    add("node_deep_minor_bytes", (deep & minor_moves) * weight)
    add("node_deep_batch_bytes", (deep & (slots.roles[:, 0] == BATCH)) * weight)
    repeated = _repeated(graph, slots)
    add("node_odd_repeated", odd * np.log1p(repeated))
    add("node_odd_bytes_repeated", (odd & (repeated > 1e-9)) * weight)
    chain = slot_chains(graph, slots) / scale.bytes
    add("node_odd_chain", odd * chain)
    add("node_minor_chain", (odd & minor_moves) * chain)
    for name, where in _origins(graph, slots).items():
        add(f"node_set_bytes_{name}", (slots.is_set & where) * weight)
        add(f"node_set_count_{name}", (slots.is_set & where) / scale.nodes)
        add(f"node_odd_bytes_{name}", (odd & where) * weight)
    for k, slot in enumerate(SLOTS):
        here = slots.slot == k
        add(f"node_set_{slot}", (here & slots.is_set) * weight)
        add(f"node_odd_chain_{slot}", (here & odd) * chain)
        add(f"node_flat_bytes_{slot}", (here & odd & ~deep) * weight)
        add(f"node_deep_inversions_{slot}", slots.inversions * (here & deep) * weight)
        add(f"node_minor_{slot}", here * weight * np.log2(slots.sizes[:, 0]))
        add(f"node_second_{slot}", here * weight * np.log2(slots.sizes[:, 1]))
        add(f"node_tile_padding_{slot}", here * weight * np.log2(slots.tile_padding))
        add(f"node_vector_padding_{slot}", here * weight * np.log2(slots.vector_padding))
        add(f"node_full_lanes_{slot}", here * weight * slots.full_lanes)
        add(f"node_padding_work_{slot}", here * work * np.log2(slots.tile_padding))
    for operation in CONFIGURABLE:
        of_kind = (kind == OPCODE_ID[operation])[slots.node]
        for k, slot in enumerate(SLOTS[:2] if operation == "reshape" else SLOTS):
            here = of_kind & (slots.slot == k)
            name = f"{operation}_{slot}"
            add(f"node_odd_bytes_{name}", (here & odd) * weight)
            add(f"node_odd_count_{name}", (here & odd) / scale.nodes)
            if operation == "reshape":
                continue
            add(f"node_odd_work_{name}", (here & odd) * work)
            for role in ROLES_OF[operation][k]:
                minor = here & (slots.roles[:, 0] == ROLES.index(role))
                add(f"node_{role}_minor_bytes_{name}", minor * weight)
    return rows | _joint_columns(graph, slots, flops / scale.flops, kind)


def _origins(graph, slots: SlotRows) -> Columns:
    """Where the tensors of operand slots come from, bool [S] each.

    A set slot keeps the compiler from computing its tensor where it is used: a loss for a cheap
    tensor, a gain for one that several users would compute again.
    """
    operand = (slots.slot > 0) & (slots.tensor >= 0)
    code = graph.opcode[slots.tensor]
    users = np.bincount(graph.edges[:, 1], minlength=len(graph.opcode))
    fused = operand & ELEMENTWISE[code]
    return {
        "elementwise": fused,
        "shared": fused & (users[slots.tensor] > 1),
        "given": operand & GIVEN[code],
        "moved": operand & ~fused & ~GIVEN[code] & ~np.isin(slots.tensor, graph.config_nodes),
    }


def slot_chains(graph, slots: SlotRows) -> np.ndarray:
    """`recompute.fused_work` of every slot row, float64 [S]: before the tensor of an operand,
    after that of an output."""
    answer = np.zeros(len(slots.node))
    for after in (False, True):
        here = (slots.tensor >= 0) & ((slots.slot == 0) == after)
        work = fused_work(graph, slots.tensor[here].tolist(), after)
        answer[here] = [work[tensor] for tensor in slots.tensor[here].tolist()]
    return answer


def _repeated(graph, slots: SlotRows) -> np.ndarray:
    """`recompute.repeated_work` of the tensors of operand slots, float64 [S]."""
    operand = (slots.slot > 0) & (slots.tensor >= 0)
    work = repeated_work(graph, slots.tensor[operand].tolist())
    return np.where(operand, [work.get(tensor, 0.0) for tensor in slots.tensor.tolist()], 0.0)


def _joint_columns(graph, slots: SlotRows, work: np.ndarray, kind: np.ndarray) -> Columns:
    """Quantities that need two slots of a node at a time, weighted by FLOPs."""
    minor = slots.roles[slots.of_row, 0]  # [R, 3]: role of each slot's minor-most dimension
    work, kind = work[graph.row_node], kind[graph.row_node]
    dot, convolution = kind == OPCODE_ID["dot"], kind == OPCODE_ID["convolution"]
    contracts = minor == CONTRACTING
    odd = (slots.is_set & ~slots.is_default)[slots.of_row]
    rows: Columns = {}
    # Does a product run along the contracted dimension on the left, the right, both, neither?
    for name, a, b in (("nn", 1, 0), ("nt", 1, 1), ("tn", 0, 0), ("tt", 0, 1)):
        fits = dot & (contracts[:, 1] == a) & (contracts[:, 2] == b)
        rows[f"node_dot_{name}_work"] = fits * work
    features_last = contracts[:, 1] & (minor[:, 0] == FREE)
    rows["node_features_last_work"] = (convolution & features_last) * work
    rows["node_odd_any_work"] = odd.any(1) * work
    rows["node_odd_operands_work"] = (odd[:, 1] & odd[:, 2]) * work
    rows["node_odd_all_count"] = odd.all(1) / max(1, len(graph.config_nodes))
    return rows


def largest_columns(graph, slots: SlotRows, flops: np.ndarray) -> Columns:
    """Quantities of the rows of which the largest counts, float64 [R] each."""
    scale = Scale(slots, flops)
    odd = slots.is_set & ~slots.is_default
    share = (odd * slots.bytes / scale.bytes)[slots.of_row].max(1)
    work = odd[slots.of_row].any(1) * (flops / scale.flops)[graph.row_node]
    return {"node_odd_bytes_max": share, "node_odd_work_max": work}


def reader_columns(graph, slots: SlotRows, flops: np.ndarray, reads: np.ndarray) -> Columns:
    """Odd outputs that someone who isn't configurable has to read, float64 [R] each.

    `reads` bool [nc, 4] as `layout_edges.readers` answers.
    """
    scale = Scale(slots, flops)
    odd = slots.is_set & ~slots.is_default & (slots.slot == 0)
    cost = (odd * slots.bytes / scale.bytes)[slots.of_row[:, 0]]
    reads = reads[graph.row_node]
    return {f"copy_out_bytes_{name}": cost * reads[:, i] for i, name in enumerate(READERS)}


def copy_columns(edges: Edges, rows: EdgeRows, slots: SlotRows, flops: np.ndarray) -> Columns:
    """Quantities of the edge rows, float64 [P] each."""
    scale = Scale(slots, flops)
    weight = rows.bytes / scale.bytes
    count = np.full(len(rows.edge), 1.0 / max(1, len(edges.node)))
    kind, slot = edges.kind[rows.edge], edges.slot[rows.edge]
    odd = ~slots.is_default[rows.used]
    deep = (slots.moved[rows.used] >= 0).sum(1) > 2
    columns: Columns = {
        "copy_bytes": rows.copied * weight,
        "copy_count": rows.copied * count,
        "copy_minor_bytes": rows.minor_differs * weight,
        "copy_handed_on_bytes": rows.handed_on * weight,
        "copy_handed_on_count": rows.handed_on * count,
        "copy_agreed_odd_bytes": (odd & ~rows.copied) * weight,  # an unset slot is not odd
        "copy_plain_bytes": (rows.copied & ~odd) * weight,
        "copy_deep_bytes": (rows.copied & deep) * weight,
    }
    for i, name in enumerate(KINDS):
        for k in (1, 2):
            here = rows.copied & (kind == i) & (slot == k)
            columns[f"copy_bytes_{name}_{SLOTS[k]}"] = here * weight
            columns[f"copy_count_{name}_{SLOTS[k]}"] = here * count
    return columns


def config_columns(graph) -> Columns:
    """What the configuration says without its graph, float64 [R] each: shares of the nodes."""
    layouts = graph.row_layout.reshape(-1, len(SLOTS), MAX_RANK)
    nodes = max(1, len(graph.config_nodes))
    is_set = layouts[:, :, 0] >= 0
    columns: Columns = {"cfg_all_set": is_set.all(1) / nodes}
    for k, slot in enumerate(SLOTS):
        columns[f"cfg_{slot}_set"] = is_set[:, k] / nodes
        for place, name in enumerate(("minor", "second")):
            for d in range(MAX_RANK):
                columns[f"cfg_{slot}_{name}_{d}"] = (layouts[:, k, place] == d) / nodes
    return columns
