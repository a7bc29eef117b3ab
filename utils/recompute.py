"""Work that a compiler repeats when it computes a tensor wherever it is used.

XLA fuses element-wise operations and data movement into their users. A value with two users
inside a fusion is computed twice, and so is all before it: along a recurrent cell or a long
normalization the number of evaluations doubles again and again. A tensor that has to lie in memory
in a layout of its own is computed once; so an odd layout can make a program faster.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from utils.layout_edges import ELEMENTWISE
from utils.tensors import node_bytes, opcode_mask, operand_edges

FUSED = ELEMENTWISE | opcode_mask(
    "bitcast broadcast concatenate dynamic-slice iota pad reshape reverse slice transpose"
)
TRANSCENDENTAL = opcode_mask(
    "atan2 cbrt cosine divide exponential exponential-minus-one log log-plus-one logistic power "
    "rsqrt sine sqrt tan tanh"
)
SLOW = 10.0  # a transcendental function against an addition
MOST = 1e6  # repeated work counts up to this many times the work of the graph
NEAR = 2000  # nodes before a node that are looked at


def repeated_work(graph, nodes: Iterable[int]) -> dict[int, float]:
    """Work that is done again when each of `nodes` is evaluated without a store in between.

    The evaluations of everything before a node as a tree, less those as a graph, over the
    element-wise work of the whole graph (bytes written, SLOW times for slow functions). 0 where
    nothing before a node has two users on the way to it. Nodes that the compiler stores anyway
    (dots, parameters, ...) are left out.
    """
    total = len(graph.opcode)
    fused = FUSED[graph.opcode]
    fused[graph.config_nodes] = False
    own = node_bytes(graph) * np.where(TRANSCENDENTAL[graph.opcode], SLOW, 1.0)
    own = np.where(fused & ELEMENTWISE[graph.opcode], own, 0.0)
    whole = own.sum() or 1.0
    before: list[list[int]] = [[] for _ in range(total)]
    for user, maker in operand_edges(graph).tolist():
        if fused[user] and fused[maker]:
            before[user].append(maker)
    users = np.bincount([v for makers in before for v in makers], minlength=total)
    tree, forked = np.zeros(total), users > 1
    for node in range(total):  # topological order: operands come first
        tree[node] = min(own[node] + sum(tree[v] for v in before[node]), MOST * whole)
        forked[node] |= any(forked[v] for v in before[node])
    return {
        node: max(0.0, tree[node] - _once(node, before, own)) / whole if forked[node] else 0.0
        for node in map(int, set(nodes))
        if fused[node]
    }


def _once(node: int, before: list[list[int]], own: np.ndarray) -> float:
    """Work of a node and of everything before it, each counted once."""
    seen, waiting = {node}, [node]
    while waiting and len(seen) < NEAR:
        fresh = set(before[waiting.pop()]) - seen
        seen |= fresh
        waiting += fresh
    return float(sum(own[v] for v in sorted(seen)))
