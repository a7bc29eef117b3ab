"""FLOPs of dots and convolutions: what their columns leave out, derived from the operands.

Two things are not in a TpuGraphs file: the contracted and batch dimensions of a dot, and which
operand of a convolution is the kernel (the edge list keeps no operand order).
"""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np

from utils.schema import MAX_RANK, NODE_COLUMN, OPCODE_ID
from utils.tensors import listed, node_dimensions, node_elements, node_rank, operand_pair


def contraction(lhs: tuple, rhs: tuple, out: tuple) -> tuple[int, int] | None:
    """Contracted size K and batch size B of a dot from its three shapes; None if nothing fits.

    The operands hold the dimensions B.., M.., K.. and B.., K.., N.. in any order, the result is
    always [B.., M.., N..]. With k contracted and b batch dimensions the ranks obey
    ``rank(lhs) + rank(rhs) - rank(out) = b + 2k``, so each k leaves one way to cut the result
    into B, M and N. It fits if what the operands have left over is the same k sizes on both
    sides. The smallest k >= 1 that fits is taken (k = 0, an outer product, comes last), and both
    orders of the operands are tried, because the edge list does not keep it.
    """
    for k in (*range(1, MAX_RANK + 1), 0):
        batch = len(lhs) + len(rhs) - len(out) - 2 * k
        for left, right in ((lhs, rhs), (rhs, lhs)):
            cut = len(left) - k
            if not 0 <= batch <= cut <= len(out):
                continue
            rest = Counter(left) - Counter(out[:cut])
            if rest.total() == k and rest == Counter(right) - Counter(out[:batch] + out[cut:]):
                return prod(rest.elements()), prod(out[:batch])
    return None


def dot_contraction(graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Dots of a graph with contracted and batch size: ``(nodes, K, B)``.

    ``nodes`` int64 [d]; K and B float64 [d], see :func:`contraction`. Where no cut fits (a rank
    above 6), ``K = sqrt(lhs rhs / out)``, which is exact without batch dimensions.
    """
    first, last = operand_pair(graph)
    nodes = np.flatnonzero((graph.opcode == OPCODE_ID["dot"]) & (first >= 0))
    dims, elements = node_dimensions(graph).astype(np.int64), node_elements(graph)
    rank = node_rank(graph)
    known: dict[tuple, tuple] = {}  # a graph has few distinct shapes of dots
    sizes = np.ones((len(nodes), 2))
    for i, triple in enumerate(zip(first[nodes], last[nodes], nodes)):
        shapes = tuple(tuple(dims[t, : rank[t]].tolist()) for t in triple)
        if shapes not in known:
            lhs, rhs, out = elements[list(triple)]
            fallback = (np.sqrt(lhs * rhs / max(out, 1.0)), 1.0)
            known[shapes] = contraction(*shapes) or fallback
        sizes[i] = known[shapes]
    return nodes, sizes[:, 0], sizes[:, 1]


def _spatial(graph, name: str, nodes: np.ndarray, entries: int) -> np.ndarray:
    return graph.node_feat[nodes, listed(name, entries)].astype(np.int64)


def _valid_positions(size, window, stride, low, high, dilation, base) -> int:
    """Pairs (output position, window position) of one dimension that meet an input element.

    Padding and the holes of a dilated input (gradient of a strided convolution) are skipped.
    """
    padded = max(size - 1, 0) * base + 1 + low + high
    outputs = max((padded - ((window - 1) * dilation + 1)) // stride + 1, 0)
    at = np.arange(outputs)[:, None] * stride + np.arange(window)[None, :] * dilation - low
    return int(((at >= 0) & (at <= (size - 1) * base) & (at % base == 0)).sum())


def convolution_operands(graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``(nodes, input, kernel)``: convolutions and which producer plays which part, int64 [c].

    Each order of the two operands is checked against everything that the columns say: the
    kernel's spatial sizes are the window, its output features are the result's, the input's
    batch is the result's times ``batch_group_count``, and the input's features are the kernel's
    times ``feature_group_count``. The order with more hits wins; file order breaks a tie.
    """
    first, last = operand_pair(graph)
    nodes = np.flatnonzero((graph.opcode == OPCODE_ID["convolution"]) & (first >= 0))
    feat = graph.node_feat[nodes].astype(np.int64)
    dims = np.pad(node_dimensions(graph).astype(np.int64), ((0, 0), (0, 1)))
    prefix = "convolution_dim_numbers_"

    def size(tensor, column):
        return dims[tensor, np.clip(feat[:, NODE_COLUMN[prefix + column]], 0, MAX_RANK)]

    def hits(tensor, kernel):
        groups = feat[:, NODE_COLUMN["feature_group_count"]]
        batch_groups = feat[:, NODE_COLUMN["batch_group_count"]]
        out = size(nodes, "output_feature_dim")
        score = (size(kernel, "kernel_output_feature_dim") == out).astype(int)
        score += size(tensor, "input_batch_dim") == (
            size(nodes, "output_batch_dim") * np.maximum(batch_groups, 1)
        )
        score += size(tensor, "input_feature_dim") == (
            size(kernel, "kernel_input_feature_dim") * np.maximum(groups, 1)
        )
        for i in range(4):
            window = feat[:, NODE_COLUMN[f"window_size_{i}"]]
            column = f"kernel_spatial_dims_{i}"
            score += (i < node_rank(graph)[nodes] - 2) & (size(kernel, column) == window)
        return score

    a, b = first[nodes], last[nodes]
    swapped = hits(b, a) > hits(a, b)
    return nodes, np.where(swapped, b, a), np.where(swapped, a, b)


def convolution_flops(graph) -> tuple[np.ndarray, np.ndarray]:
    """``(nodes, flops)`` of the convolutions, int64 [c] and float64 [c].

    2 x output batch x output features x kernel input features x product over the spatial
    dimensions of the (output, window) position pairs that meet an input element. Positions in the
    padding or in the holes of a dilated input cost nothing, as in ``HloCostAnalysis``.
    """
    nodes, tensor, kernel = convolution_operands(graph)
    dims = node_dimensions(graph)
    feat = graph.node_feat[nodes].astype(np.int64)
    dim = {
        name: np.clip(feat[:, NODE_COLUMN[f"convolution_dim_numbers_{name}"]], 0, MAX_RANK - 1)
        for name in ("output_batch_dim", "output_feature_dim", "kernel_input_feature_dim")
    }
    flops = 2.0 * dims[nodes, dim["output_batch_dim"]] * dims[nodes, dim["output_feature_dim"]]
    flops *= dims[kernel, dim["kernel_input_feature_dim"]]
    spatial = np.clip(
        _spatial(graph, "convolution_dim_numbers_input_spatial_dims", nodes, 4), 0, MAX_RANK - 1
    )
    sizes = np.take_along_axis(dims[tensor], spatial, axis=1).astype(np.int64)
    names = "size stride padding_low padding_high window_dilation base_dilation".split()
    window = np.stack([sizes, *(_spatial(graph, f"window_{x}", nodes, 4) for x in names)], axis=-1)
    window[..., [1, 2, 5, 6]] = np.maximum(window[..., [1, 2, 5, 6]], 1)
    used = np.arange(4)[None, :] < (node_rank(graph)[nodes] - 2)[:, None]
    # Few distinct windows occur in a graph; each is counted once.
    distinct, which = np.unique(window[used], axis=0, return_inverse=True)
    counts = np.array([_valid_positions(*row) for row in distinct.tolist()], dtype=np.float64)
    positions = np.ones(used.shape)
    positions[used] = counts[which.ravel()] if len(counts) else 0.0
    return nodes, flops * positions.prod(1)
