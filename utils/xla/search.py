"""Search the layouts of a traced program with a cost-table model alone: nothing is compiled.

A configuration is a row of codes, as in `utils.xla.layouts`, and code 0 leaves an operation to the
compiler; but here each operation has many more layouts to choose from than a collected graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from utils.coding import Graph
from utils.hlo import module_graph
from utils.schema import MAX_RANK, UNSET
from utils.xla.jaxprs import Operation
from utils.xla.layouts import DENSITIES

ORDERS = 24  # of one slot at most: all of rank 4, and as many of the 120 of rank 5
ROWS = 200  # of one operation at most; codes are one byte
LIMITS = (1, 2, 4, None)  # operations that a candidate may configure; None: all
STEPS = 60  # downhill, for each limit at most


def slot_orders(rank: int, rng: np.random.Generator) -> np.ndarray:
    """Layouts of one slot, int8 [k, 6], minor to major; the first is unset, as is all of rank 0."""
    listed = itertools.islice(itertools.permutations(range(rank)[::-1]), 720) if rank else ()
    found = list(listed)
    if len(found) > ORDERS:  # row-major is the first
        drawn = rng.choice(np.arange(1, len(found)), ORDERS - 1, replace=False)
        found = [found[0], *(found[i] for i in sorted(drawn))]
    rows = np.full((1 + len(found), MAX_RANK), UNSET, np.int8)
    for row, order in zip(rows[1:], found):
        row[:rank] = order
    return rows


def choices(operation: Operation, rng: np.random.Generator) -> np.ndarray:
    """Layouts of one operation, int8 [2..ROWS, 18]; row 0 is all unset.

    All combinations of its slots' layouts, or where these are too many those that set one slot
    and others drawn at random.
    """
    slots = [slot_orders(rank, rng) for rank in operation.ranks]
    codes = np.array(list(itertools.product(*map(range, map(len, slots)))))
    if len(codes) > ROWS:
        single = np.flatnonzero((codes != 0).sum(1) <= 1)
        others = np.setdiff1d(np.arange(len(codes)), single)
        drawn = rng.choice(others, max(0, ROWS - len(single)), replace=False)
        codes = codes[np.concatenate([single, np.sort(drawn)])[:ROWS]]
    return np.concatenate([table[column] for table, column in zip(slots, codes.T)], axis=1)


def program_graph(module, nodes: np.ndarray, pools: Sequence[np.ndarray]) -> Graph:
    """The graph of a module whose `nodes` [nc] choose from `pools`, with no configuration yet."""
    arrays = module_graph(module)
    return Graph(
        file=None,
        node_feat=arrays["node_feat"], opcode=arrays["node_opcode"], edges=arrays["edge_index"],
        runtime=np.zeros(0, np.int64),
        config_nodes=nodes,
        row_start=np.cumsum([0, *map(len, pools)]).astype(np.int32),
        row_layout=np.concatenate(pools),
        codes=np.zeros((0, len(nodes)), np.uint8, order="F"),
    )  # fmt: skip


def search(
    sizes: Sequence[int],
    score: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
    draws: int = 4000,
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct code rows uint8 [m, nc], the default first, and their scores float64 [m].

    score: code rows -> scores, larger = slower. Looks at the default, the rows that configure one
    operation and random ones (`draws` of either at most). From the best it goes downhill, always
    to the best row that differs in one operation; this for each of LIMITS by itself: errors of
    the model add up over what is changed, so the best rows with few changes are wanted too.
    """
    sizes = np.asarray(sizes)
    nodes = len(sizes)
    default = np.zeros((1, nodes), np.uint8)
    single = _neighbours(default[0], sizes)
    single = single[np.sort(rng.permutation(len(single))[:draws])]
    on = rng.random((draws, nodes)) < rng.choice(DENSITIES, (draws, 1))
    drawn = np.where(on, rng.integers(1, sizes, (draws, nodes)), 0).astype(np.uint8)
    seen = [np.concatenate([default, single, drawn])]
    found = [score(seen[0])]
    changed = (seen[0] != 0).sum(1)
    for limit in LIMITS:
        many = nodes if limit is None else limit
        allowed = np.flatnonzero(changed <= many)
        start = allowed[found[0][allowed].argmin()]
        here, lowest = seen[0][start], found[0][start]
        for _ in range(STEPS):
            rows = _neighbours(here, sizes)
            rows = rows[(rows != 0).sum(1) <= many]
            seen.append(rows)
            found.append(score(rows))
            best = found[-1].argmin()
            if found[-1][best] >= lowest:
                break
            here, lowest = rows[best], found[-1][best]
    codes = np.concatenate(seen)
    rows = np.ascontiguousarray(codes).view(f"V{nodes}").ravel()
    first = np.sort(np.unique(rows, return_index=True)[1])
    return codes[first], np.concatenate(found)[first]


def _neighbours(row: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """All rows that differ from `row` in one operation, uint8 [sum of sizes less nc, nc]."""
    node = np.repeat(np.arange(len(sizes)), sizes)
    code = np.concatenate([np.arange(many) for many in sizes])
    other = code != row[node]
    rows = np.repeat(row[None], other.sum(), axis=0)
    rows[np.arange(len(rows)), node[other]] = code[other]
    return rows


def ranked(codes: np.ndarray, score: np.ndarray) -> np.ndarray:
    """int64 [k]: rows that the model puts before the default (row 0), in the order to measure them.

    The best for each of LIMITS in turn, none twice. Among equal scores the row with fewer
    operations configured comes first.
    """
    changed = (codes != 0).sum(1)
    level = np.round(score - score[0], 9)
    order = np.lexsort((changed, level))
    order = order[level[order] < 0]
    lists = [order if limit is None else order[changed[order] <= limit] for limit in LIMITS]
    mixed = (row for rows in itertools.zip_longest(*lists) for row in rows if row is not None)
    return np.fromiter(dict.fromkeys(mixed), np.int64)
