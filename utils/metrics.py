"""The competition's metrics and two that say how much a ranking is worth.

Everywhere `target` is float [c], smaller = faster, and `score` float [c], larger = slower. A
ranking is the stable order of the scores: among equal scores the earlier configuration is first.
"""

from __future__ import annotations

import numpy as np
from scipy import stats


def ranking(score: np.ndarray) -> np.ndarray:
    """int64 [c]: configurations from the fastest to the slowest."""
    return np.argsort(score, kind="stable")


def kendall_tau(a: np.ndarray, b: np.ndarray) -> float:
    """Kendall's tau-b, -1 to 1; 0 if one side is constant or there are fewer than two values."""
    if len(a) < 2:
        return 0.0
    tau = stats.kendalltau(a, b).statistic
    return 0.0 if np.isnan(tau) else float(tau)


def slowdown(target: np.ndarray, score: np.ndarray, k: int) -> float:
    """How much slower the fastest of the `k` best-ranked is than the fastest of all: 0 is best."""
    best = target.min()
    chosen = target[ranking(score)[:k]].min()
    return float(chosen / best - 1) if best > 0 else float(chosen > best)


def tile_score(target: np.ndarray, score: np.ndarray, k: int = 5) -> float:
    """The competition's score of a tile kernel, 1 - slowdown: 1 is best."""
    return 1.0 - slowdown(target, score, k)


def pair_accuracy(target: np.ndarray, score: np.ndarray) -> float:
    """Share of pairs of different target that the score orders rightly; equal scores count half.

    0.5 if all targets are equal. From tau-b: with C right and D wrong pairs,
    tau_b = (C - D) / sqrt(P_target * P_score), where P are the pairs that differ.
    """
    pairs = len(target) * (len(target) - 1) // 2
    differ_target = pairs - _tied_pairs(target)
    if not differ_target:
        return 0.5
    differ_score = pairs - _tied_pairs(score)
    surplus = kendall_tau(target, score) * np.sqrt(float(differ_target) * differ_score)
    return float(0.5 + 0.5 * round(surplus) / differ_target)  # C - D is a whole number


def _tied_pairs(values: np.ndarray) -> int:
    count = np.unique(values, return_counts=True)[1].astype(np.int64)
    return int((count * (count - 1) // 2).sum())


def within_graph_rank(target: np.ndarray) -> np.ndarray:
    """float64 [c]: rank inside the graph from 0 (fastest) to 1 (slowest); ties share their mean.

    All 0.5 if there is one configuration or one target.
    """
    if len(target) < 2:
        return np.full(len(target), 0.5)
    return (stats.rankdata(target) - 1) / (len(target) - 1)
