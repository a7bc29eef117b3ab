"""What every node's output tensor is (rank, element type, elements, bytes) and who reads it.

All functions take anything with ``node_feat`` float32 [n, 140], ``opcode`` uint8 [n] and
``edges`` int64 [m, 2] (u consumes v).
"""

from __future__ import annotations

import numpy as np

from utils.schema import ELEMENT_BYTES, ELEMENT_TYPES, MAX_RANK, NODE_COLUMN, OPCODE_ID, OPCODES


def listed(name: str, entries: int = MAX_RANK) -> slice:
    """Columns of node_feat that hold the list ``name``."""
    start = NODE_COLUMN[f"{name}_0"]
    return slice(start, start + entries)


DIMENSIONS = listed("shape_dimensions")
_TYPE = slice(
    NODE_COLUMN[f"shape_element_type_is_{ELEMENT_TYPES[0]}"],
    NODE_COLUMN[f"shape_element_type_is_{ELEMENT_TYPES[-1]}"] + 1,
)
_PRODUCT = NODE_COLUMN["shape_dimensions_product"]


def opcode_mask(names: str) -> np.ndarray:
    """bool [256]: is opcode i one of these? Names are separated by blanks."""
    mask = np.zeros(256, dtype=bool)
    mask[[OPCODE_ID[name] for name in names.split()]] = True
    return mask


# Instructions with an edge to the root of each computation that they call.
CALLING = opcode_mask(
    "all-reduce all-reduce-start async-start call conditional custom-call fusion map reduce "
    "reduce-scatter reduce-window scatter select-and-scatter sort while"
)

def node_dimensions(graph) -> np.ndarray:
    """Sizes of the first six dimensions, float64 [n, 6], 0 where there is none."""
    return graph.node_feat[:, DIMENSIONS].astype(np.float64)


def node_rank(graph) -> np.ndarray:
    """Number of dimensions, int64 [n]: the last non-zero size counts, at most 6 are stored."""
    present = graph.node_feat[:, DIMENSIONS] != 0
    return np.where(present.any(1), MAX_RANK - np.argmax(present[:, ::-1], axis=1), 0)


def node_type(graph) -> np.ndarray:
    """Index of the element type in ``schema.ELEMENT_TYPES``, int64 [n] (0: invalid)."""
    return graph.node_feat[:, _TYPE].argmax(1)


def element_bytes(graph) -> np.ndarray:
    """Bytes of one element, float64 [n]; 0 for tuples, tokens and opaque values."""
    return np.asarray(ELEMENT_BYTES, dtype=np.float64)[node_type(graph)]


def node_elements(graph) -> np.ndarray:
    """Elements of the output tensor, float64 [n]; 0 for tuples, tokens and opaque values.

    The product is taken again from the dimensions in float64, because the product column was
    rounded to float32 above 2**24. Where the two differ by more than rounding the list of
    dimensions was cut (rank above 6) or one size is 0; then the column is right.
    """
    dims = node_dimensions(graph)
    column = graph.node_feat[:, _PRODUCT].astype(np.float64)
    exact = np.where(dims > 0, dims, 1.0).prod(1)
    elements = np.where(np.abs(exact - column) <= 1e-6 * exact, exact, column)
    return np.where(element_bytes(graph) > 0, elements, 0.0)


def node_bytes(graph) -> np.ndarray:
    """Bytes of the output tensor without layout padding, float64 [n]; 0 for tuples."""
    return node_elements(graph) * element_bytes(graph)


def is_operand_edge(graph) -> np.ndarray:
    """bool [m]: False for an edge from a calling instruction to a called computation's root."""
    consumer, producer = graph.edges.T
    root = graph.node_feat[:, NODE_COLUMN["is_root"]] > 0
    return ~(CALLING[graph.opcode[consumer]] & root[producer])


def operand_edges(graph) -> np.ndarray:
    """The edges that carry a tensor from a producer to its consumer, int64 [m', 2]."""
    return graph.edges[is_operand_edge(graph)]


def operand_pair(graph) -> tuple[np.ndarray, np.ndarray]:
    """First and last operand of every node in file order, int64 [n] each; -1 without operands.

    A node that uses one tensor twice (``dot(x, x)``) has one edge: both are that tensor.
    """
    consumer, producer = operand_edges(graph).T
    first, last = np.full((2, len(graph.opcode)), -1)
    last[consumer] = producer
    first[consumer[::-1]] = producer[::-1]
    return first, last


def opcode_name(graph) -> np.ndarray:
    """Opcode names, str [n]; a number outside the list is 'unknown'."""
    names = np.array([*OPCODES, *["unknown"] * (256 - len(OPCODES))])
    return names[graph.opcode]
