"""Closed-form cost of every node of a graph: bytes moved and FLOPs, without running anything.

All functions take anything with ``node_feat`` float32 [n, 140], ``opcode`` uint8 [n] and
``edges`` int64 [m, 2] (u consumes v), and answer one float64 a node. Formulas follow XLA's
``HloCostAnalysis`` (xla/service/hlo_cost_analysis.cc) where it has one.
"""

from __future__ import annotations

import numpy as np

from utils.contraction import convolution_flops, dot_contraction
from utils.schema import NODE_COLUMN, OPCODE_ID
from utils.tensors import (
    element_bytes,
    node_bytes,
    node_dimensions,
    node_elements,
    node_rank,
    opcode_mask,
    operand_edges,
)

__all__ = [
    "bytes_read",
    "element_bytes",
    "node_bytes",
    "node_elements",
    "node_flops",
    "node_rank",
    "node_traffic",
]

# These only name, group or alias values; they read and write no tensor of their own.
FREE = opcode_mask(
    "unknown add-dependency after-all bitcast call conditional constant domain fusion "
    "get-dimension-size get-tuple-element opt-barrier parameter partition-id replica-id "
    "set-dimension-size tuple while async-start async-update async-done copy-done"
)
# They read only what they write (or what they update), however large their operand is.
_WINDOWED = opcode_mask("slice dynamic-slice gather")
# One operation an element of the result. XLA counts transcendental functions (exponential, tanh,
# ...) in a counter of their own; here they count one as well.
ELEMENTWISE = opcode_mask(
    "abs add and atan2 cbrt ceil clamp compare complex convert cosine count-leading-zeros divide "
    "exponential exponential-minus-one floor imag is-finite log log-plus-one logistic maximum "
    "minimum multiply negate not or popcnt power real reduce-precision remainder rng "
    "rng-bit-generator round-nearest-afz round-nearest-even rsqrt select shift-left "
    "shift-right-arithmetic shift-right-logical sign sine sqrt stochastic-convert subtract tan "
    "tanh xor map"
)


def _operand_sum(graph, values: np.ndarray) -> np.ndarray:
    consumer, producer = operand_edges(graph).T
    return np.bincount(consumer, weights=values[producer], minlength=len(graph.opcode))


def _operand_max(graph, values: np.ndarray) -> np.ndarray:
    consumer, producer = operand_edges(graph).T
    largest = np.zeros(len(graph.opcode))
    np.maximum.at(largest, consumer, values[producer])
    return largest


def bytes_read(graph) -> np.ndarray:
    """Bytes of the operands that a node has to read, float64 [n].

    Slices and gathers read what they write. An in-place update reads all but the tensor that it
    updates. An operand used twice counts once, as the edge list holds it once.
    """
    size = node_bytes(graph)
    read = _operand_sum(graph, size)
    read = np.where(_WINDOWED[graph.opcode], np.minimum(read, size), read)
    in_place = graph.opcode == OPCODE_ID["dynamic-update-slice"]
    read = np.where(in_place, np.maximum(read - size, 0.0), read)
    return np.where(FREE[graph.opcode], 0.0, read)


def node_traffic(graph) -> np.ndarray:
    """Bytes read plus bytes written if nothing is fused, float64 [n]; 0 for aliases."""
    read = bytes_read(graph)
    written = np.where(FREE[graph.opcode], 0.0, node_bytes(graph))
    in_place = graph.opcode == OPCODE_ID["dynamic-update-slice"]
    return read + np.where(in_place, np.minimum(written, read), written)


def node_flops(graph) -> np.ndarray:
    """Floating-point (or integer) operations of every node, float64 [n].

    - dot: 2 x elements x K (:func:`utils.contraction.contraction`)
    - convolution: :func:`utils.contraction.convolution_flops`
    - element-wise: 1 an element
    - reduce, all-reduce, reduce-scatter: elements of the largest operand less those of the result
      (all-reduce: one an element); scatter: one an element of the updates and indices
    - reduce-window: elements x (window - 1); select-and-scatter: source elements x window
    - sort: E log2 E of the largest operand; fft: 5 E log2 E
    - cholesky: elements x side / 3; triangular-solve: elements x side of the largest operand
    - batch normalization: about 8 an element of the operand (mean, variance, scale, shift)
    - anything else: 0. ``while``, ``fusion`` and ``call`` are 0 as well: their bodies' nodes are
      in the graph, and the number of iterations is unknown.
    """
    opcode = graph.opcode
    elements = node_elements(graph)
    largest = _operand_max(graph, elements)
    total = _operand_sum(graph, elements)
    window = np.maximum(graph.node_feat[:, NODE_COLUMN["window_size_product"]].astype(float), 1.0)
    dims = node_dimensions(graph)
    side = dims[np.arange(len(dims)), np.maximum(node_rank(graph) - 1, 0)]
    flops = np.where(ELEMENTWISE[opcode], elements, 0.0)

    def put(names: str, values: np.ndarray) -> None:
        chosen = opcode_mask(names)[opcode]
        flops[chosen] = values[chosen]

    put("reduce reduce-scatter", np.maximum(largest - elements, 0.0))
    put("all-reduce all-reduce-start", np.where(elements > 0, elements, total))
    put("scatter", np.maximum(total - elements, 0.0))
    put("reduce-window", elements * np.maximum(window - 1.0, 1.0))
    put("select-and-scatter", np.maximum(total - elements - 1.0, 0.0) * window)
    put("sort", largest * np.log2(np.maximum(largest, 2.0)))
    put("fft", 5.0 * elements * np.log2(np.maximum(elements, 2.0)))
    put("cholesky", elements * side / 3.0)
    put("triangular-solve", elements * side)
    put("batch-norm-training batch-norm-inference batch-norm-grad", 8.0 * largest)
    dots, contracted, _ = dot_contraction(graph)
    flops[dots] = 2.0 * elements[dots] * contracted
    convolutions, values = convolution_flops(graph)
    flops[convolutions] = values
    return flops
