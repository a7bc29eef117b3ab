"""Sums over the nodes of a configuration, several nodes a lookup.

A lookup costs more than the small-integer arithmetic that finds its place. Nodes have few rows
each, so the tables of a few nodes, and of the pairs among them, are added up beforehand into one
table over all combinations of their codes, small enough for the processor's nearest cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

LIMIT = 4096  # entries of one table: 32 KB
CHUNK = 1 << 14  # configurations that are worked on at once

Lookup = tuple[tuple[int, ...], tuple[int, ...], np.ndarray]  # nodes, their rows, table


def joint_sum(
    codes: np.ndarray,
    tables: Sequence[np.ndarray],
    pairs: dict[tuple[int, int], np.ndarray],
    threads: int = 1,
) -> np.ndarray:
    """float64 [c]: the sum of tables[j][codes[:, j]] and of pairs[i, j][codes[:, i], codes[:, j]].

    codes: uint8 or uint16 [c, nc], best column by column in memory (as `coding.Graph` has them);
    tables: float64 [rows of node j] for each node; pairs: float64 [rows of i, rows of j].
    The result depends on neither `threads` nor the number of configurations.
    """
    lookups = join(tables, pairs)
    total = np.zeros(len(codes))

    def work(start: int) -> None:
        part, out = codes[start : start + CHUNK], total[start : start + CHUNK]
        place = np.empty(len(part), np.uint32)
        found = np.empty(len(part))
        for nodes, many, table in lookups:
            narrow = place if len(table) > 1 << 16 else place.view(np.uint16)[: len(part)]
            narrow[:] = part[:, nodes[0]]
            for node, rows in zip(nodes[1:], many[1:]):
                narrow *= narrow.dtype.type(rows)
                narrow += part[:, node]
            np.take(table, narrow, out=found, mode="clip")
            np.add(out, found, out=out)

    with ThreadPoolExecutor(threads) as pool:  # numpy lets go of the interpreter while it works
        list(pool.map(work, range(0, len(codes), CHUNK)))
    return total


def join(
    tables: Sequence[np.ndarray], pairs: dict[tuple[int, int], np.ndarray]
) -> list[Lookup]:
    """Few lookups with the same sum: neighbouring nodes together while their table is small."""
    many = [len(table) for table in tables]
    groups: list[list[int]] = []
    size = LIMIT + 1
    for node in (j for j, rows in enumerate(many) if rows > 1):
        if size * many[node] > LIMIT:
            groups.append([])
            size = 1
        groups[-1].append(node)
        size *= many[node]
    group_of = {node: g for g, nodes in enumerate(groups) for node in nodes}
    constant = sum(float(table[0]) for table in tables if len(table) == 1)
    joint = [np.zeros([many[node] for node in nodes]) for nodes in groups]
    for node, g in group_of.items():
        joint[g] += _spread(tables[node], groups[g], (node,))
    apart: list[Lookup] = []
    for (i, j), table in pairs.items():
        if i in group_of and group_of[i] == group_of.get(j):
            joint[group_of[i]] += _spread(table, groups[group_of[i]], (i, j))
        else:
            apart.append(((i, j), (many[i], many[j]), np.ascontiguousarray(table).ravel()))
    inside = [
        (tuple(nodes), table.shape, table.ravel()) for nodes, table in zip(groups, joint)
    ]
    if constant and (inside or apart):
        nodes, rows, table = (inside or apart)[0]
        (inside or apart)[0] = nodes, rows, table + constant
    return inside + apart


def _spread(table: np.ndarray, nodes: list[int], axes: tuple[int, ...]) -> np.ndarray:
    """`table` [rows of axes] with the axes of `nodes`, of length 1 where it doesn't depend."""
    order = sorted(axes, key=nodes.index)
    table = np.transpose(table, [axes.index(node) for node in order])
    shape = [table.shape[order.index(node)] if node in order else 1 for node in nodes]
    return table.reshape(shape)
