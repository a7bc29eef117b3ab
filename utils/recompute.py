"""Work that a compiler fuses with a tensor, and how much of it is done more than once.

XLA fuses element-wise operations and data movement into their users. A value with two users
inside a fusion is computed twice, and so is all before it: along a recurrent cell or a long
normalization the number of evaluations doubles again and again. A tensor that has to lie in memory
in a layout of its own is computed once; so an odd layout can make a program faster.

It can make it slower, too, by more than its bytes: all that is fused with the tensor then runs in
an order that its other operands don't have, and a loop that reads across rows is not vectorized.
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
CLOSE = 200  # the same, of what is fused with a node


def repeated_work(graph, nodes: Iterable[int]) -> dict[int, float]:
    """Work that is done again when each of `nodes` is evaluated without a store in between.

    The evaluations of everything before a node as a tree, less those as a graph, over the
    element-wise work of the whole graph (bytes written, SLOW times for slow functions). 0 where
    nothing before a node has two users on the way to it. Nodes that the compiler stores anyway
    (dots, parameters, ...) are left out.
    """
    total = len(graph.opcode)
    fused, own = _own_work(graph)
    whole = own.sum() or 1.0
    before = _fused_links(graph, fused)
    users = np.bincount([v for makers in before for v in makers], minlength=total)
    tree, forked = np.zeros(total), users > 1
    for node in range(total):  # topological order: operands come first
        tree[node] = min(own[node] + sum(tree[v] for v in before[node]), MOST * whole)
        forked[node] |= any(forked[v] for v in before[node])
    return {
        node: max(0.0, tree[node] - _once([node], before, own)) / whole if forked[node] else 0.0
        for node in map(int, set(nodes))
        if fused[node]
    }


def fused_work(graph, nodes: Iterable[int], after: bool = False) -> dict[int, float]:
    """Element-wise work that is fused with each of `nodes`, in bytes written (SLOW times for slow
    functions), each operation once: what comes before the node and the node itself, or what reads
    it. Stored tensors (dots, parameters, reductions, ...) end a fusion; at most CLOSE nodes count.
    """
    fused, own = _own_work(graph)
    links = _fused_links(graph, fused, after)
    return {
        node: _once(links[node] if after else [node] * int(fused[node]), links, own, CLOSE)
        for node in map(int, set(nodes))
    }


def _fused_links(graph, fused: np.ndarray, after: bool = False) -> list[list[int]]:
    """Of every node what is fused with it: its makers, or (of a stored node too) its users."""
    links: list[list[int]] = [[] for _ in range(len(fused))]
    for user, maker in operand_edges(graph).tolist():
        if after and fused[user]:
            links[maker].append(user)
        elif not after and fused[user] and fused[maker]:
            links[user].append(maker)
    return links


def _own_work(graph) -> tuple[np.ndarray, np.ndarray]:
    """bool [n]: is the node fused with others? float64 [n]: its own element-wise work."""
    fused = FUSED[graph.opcode]
    fused[graph.config_nodes] = False
    own = node_bytes(graph) * np.where(TRANSCENDENTAL[graph.opcode], SLOW, 1.0)
    return fused, np.where(fused & ELEMENTWISE[graph.opcode], own, 0.0)


def _once(
    start: list[int], links: list[list[int]], own: np.ndarray, most: int = NEAR
) -> float:
    """Work of some nodes and of all that `links` lead to, each counted once."""
    seen, waiting = set(start), list(start)
    while waiting and len(seen) < most:
        fresh = set(links[waiting.pop()]) - seen
        seen |= fresh
        waiting += fresh
    return float(sum(own[v] for v in sorted(seen)))
