"""Sums over the nodes of a configuration, several nodes a lookup.

A lookup costs more than the small-integer arithmetic that finds its place. Nodes have few rows
each, so the tables of a few neighbours are added up beforehand into one table over all
combinations of their codes, small enough for the processor's own cache. A chain of nodes, each
with a table of it and the one before, is cut into such groups that share their ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from math import prod

import numpy as np

LIMIT = 1 << 13  # entries of a joint table: 64 KB
CHUNK = 1 << 16  # configurations that are worked on at once, at most

Nodes = tuple[int, ...]  # columns of codes
Lookup = tuple[Nodes, np.ndarray]  # nodes, table with one axis for each


def joint_sum(codes: np.ndarray, tables: Mapping[Nodes, np.ndarray], threads: int = 1):
    """float64 [c]: the sum over `tables` of ``tables[i, j, ...][codes[:, i], codes[:, j], ...]``.

    codes: unsigned [c, nc], best column by column in memory (as `coding.Graph` has them);
    tables: float64, one axis for each of the nodes that they are filed under, one or more.
    The result depends on neither `threads` nor the number of configurations.
    """
    lookups = join(tables)
    total = np.zeros(len(codes))

    def work(part: np.ndarray, total: np.ndarray) -> None:
        for nodes, table in lookups:
            place = part[:, nodes[0]].astype(np.uint16 if table.size < 1 << 16 else np.uint32)
            for node, rows in zip(nodes[1:], table.shape[1:]):
                place *= rows
                place += part[:, node]
            total += np.take(table, place, mode="clip")  # clip: places need no check

    cuts = np.linspace(0, len(codes), -(-len(codes) // CHUNK) + 1).astype(int)[1:-1]
    with ThreadPoolExecutor(threads) as pool:  # numpy lets go of the interpreter while it works
        list(pool.map(work, np.split(codes, cuts), np.split(total, cuts)))
    return total


def join(tables: Mapping[Nodes, np.ndarray]) -> list[Lookup]:
    """Few lookups with the same sum: neighbouring nodes together while their table is small."""
    groups: list[tuple[list[int], list[np.ndarray]]] = []  # nodes, newest first; parts of a table
    size = 1  # of the last group's table
    for nodes in sorted(tables, key=lambda nodes: (max(nodes), -len(nodes))):
        rows = dict(zip(nodes, tables[nodes].shape))
        new = [node for node in nodes if not groups or node not in groups[-1][0]]
        if not groups or new and size * prod(map(rows.get, new)) > LIMIT:
            groups.append(([], []))
            new, size = [*nodes], 1
        group, parts = groups[-1]
        group[:0] = new
        size *= prod(map(rows.get, new))
        order = sorted(range(len(nodes)), key=[group.index(node) for node in nodes].__getitem__)
        part = tables[nodes].transpose(order).reshape([rows.get(node, 1) for node in group])
        if new:
            parts.append(part)
        else:
            parts[-1] = parts[-1] + part
    return [(tuple(nodes), reduce(np.add, parts)) for nodes, parts in groups]
