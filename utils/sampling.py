"""Which configurations of a large graph are trained on."""

from __future__ import annotations

import numpy as np


def sample_by_rank(target: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [min(count, c)]: configurations spread evenly over the ranks of a graph, ascending.

    target: float64 [c], of distinct configurations. They are sorted by it and cut into `count`
    runs of equal length (give or take one), from each of which one is drawn: so the few fastest
    and slowest, rare in a plain draw, are there in proportion every time.
    """
    size = len(target)
    if count >= size:
        return np.arange(size)
    bounds = np.arange(count + 1) * size // count
    place = bounds[:-1] + (rng.random(count) * np.diff(bounds)).astype(np.int64)
    return np.sort(np.argsort(target, kind="stable")[place])
