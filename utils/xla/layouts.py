"""Draw layout configurations: independent draws, and a search that starts at the default.

A configuration is a row of small codes, one per configurable node, into that node's pool of
layout rows (18 columns of the schema). Code 0 is "the compiler decides" everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from utils.schema import MAX_RANK, UNSET
from utils.xla.jaxprs import Operation

POOL = 8  # distinct rows of a node at most; the release has 2 to 9
SLOT_SET = 0.55  # chance that a slot of a drawn row has a layout at all
ROW_MAJOR = 0.25  # chance that a set slot asks for the default order
DENSITIES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)  # chance that a node is configured


def _draw_slot(rank: int, rng: np.random.Generator) -> np.ndarray:
    """Six columns of one layout, minor to major; rank 0 and unset slots are all -1."""
    columns = np.full(MAX_RANK, UNSET, dtype=np.int8)
    if rank and rng.random() < SLOT_SET:
        default = np.arange(rank)[::-1]
        columns[:rank] = default if rng.random() < ROW_MAJOR else rng.permutation(rank)
    return columns


def layout_pool(operation: Operation, rng: np.random.Generator) -> np.ndarray:
    """Distinct layout rows of one operation, int8 [2..POOL, 18]; row 0 is all unset."""
    rows = {(UNSET,) * 18: None}
    for _ in range(20 * POOL):  # an operation with few choices has a smaller pool
        rows.setdefault(tuple(np.concatenate([_draw_slot(r, rng) for r in operation.ranks])))
        if len(rows) == POOL:
            break
    return np.array(list(rows), dtype=np.int8)


def random_configs(sizes: Sequence[int], count: int, rng: np.random.Generator) -> np.ndarray:
    """Up to ``count`` distinct code rows, int64 [c, nc], the default first.

    Each draw picks a density, then configures each node with that chance.
    """
    sizes = np.asarray(sizes)
    seen = {(0,) * len(sizes): None}
    for _ in range(30 * count):  # small programs may have fewer configurations than asked for
        if len(seen) == count:
            break
        on = rng.random(len(sizes)) < rng.choice(DENSITIES)
        seen.setdefault(tuple(np.where(on, rng.integers(1, sizes), 0).tolist()))
    return np.array(list(seen), dtype=np.int64)


def search_configs(
    sizes: Sequence[int],
    count: int,
    evaluate: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
    generation: int = 25,
    elite: int = 12,
) -> np.ndarray:
    """A small genetic search from the compiler's own choice; int64 [>= c, nc] in order tried.

    evaluate: code rows [g, nc] -> runtimes [g]; not called again for a row that it has seen.
    Children are crossed from two of the fastest and mutated in one to four nodes, so that
    configurations cluster near good ones. Proposals that were tried before stay in the list
    (a tenth of ``count`` at most): the release repeats configurations in the same way.
    """
    sizes = np.asarray(sizes)
    default = (0,) * len(sizes)
    runtime: dict[tuple, float] = {}
    tried, repeats, stale, batch = [], 0, 0, [default]

    def child(parents: list[tuple]) -> tuple:
        a, b = (np.array(parents[i]) for i in rng.integers(len(parents), size=2))
        row = np.where(rng.random(len(sizes)) < 0.5, a, b)
        for node in rng.integers(len(sizes), size=rng.integers(1, 5)):
            row[node] = rng.integers(sizes[node])
        return tuple(row.tolist())

    while stale < 20:  # a small program runs out of new configurations
        fresh = [row for row in dict.fromkeys(batch) if row not in runtime]
        if fresh:
            runtime |= zip(fresh, np.asarray(evaluate(np.array(fresh))).tolist())
        stale = 0 if fresh else stale + 1
        tried += batch
        if len(runtime) >= count:
            break
        parents = sorted(runtime, key=runtime.get)[:elite]
        batch, known = [], set(runtime)
        for _ in range(100):
            row = child(parents)
            if row not in known:
                known.add(row)
                batch.append(row)
            elif repeats < count // 10:
                repeats += 1
                batch.append(row)
            if len(batch) == generation or len(known) == count:
                break
    return np.array(tried, dtype=np.int64)
