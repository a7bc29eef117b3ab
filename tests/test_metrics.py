"""Metrics against cases worked by hand, brute force over all pairs, and scipy."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utils.metrics import (
    kendall_tau, pair_accuracy, ranking, slowdown, tile_score, within_graph_rank,
)


def brute(target, score):
    """(tau-b, pair accuracy) by looking at every pair."""
    right = wrong = differ_target = differ_score = half = 0
    for i, j in combinations(range(len(target)), 2):
        t, s = np.sign(target[i] - target[j]), np.sign(score[i] - score[j])
        differ_target += t != 0
        differ_score += s != 0
        right += t * s > 0
        wrong += t * s < 0
        half += t != 0 and s == 0
    pairs = differ_target * differ_score
    tau = (right - wrong) / np.sqrt(pairs) if pairs else 0
    return tau, (right + half / 2) / differ_target if differ_target else 0.5


values = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=25)


@settings(max_examples=60, deadline=None)
@given(values)
def test_tau_and_pair_accuracy_equal_brute_force(pairs):
    target, score = np.array(pairs, float).T
    tau, accuracy = brute(target, score)
    assert kendall_tau(target, score) == pytest.approx(tau, abs=1e-12)
    assert pair_accuracy(target, score) == pytest.approx(accuracy, abs=1e-12)


def test_tau_by_hand():
    assert kendall_tau(np.array([1, 2, 3, 4]), np.array([10, 20, 30, 40])) == pytest.approx(1)
    assert kendall_tau(np.array([1, 2, 3, 4]), np.array([4, 3, 2, 1])) == pytest.approx(-1)
    # 5 pairs right, 1 wrong of 6
    assert kendall_tau(np.array([1, 2, 3, 4]), np.array([1, 3, 2, 4])) == pytest.approx(4 / 6)
    # 2 pairs right, 1 tied on one side: 2 / sqrt(3 * 2)
    assert kendall_tau(np.array([1, 2, 3]), np.array([1, 1, 2])) == pytest.approx(2 / np.sqrt(6))
    assert kendall_tau(np.array([1.0, 2, 3]), np.zeros(3)) == 0.0
    assert kendall_tau(np.array([1.0]), np.array([1.0])) == 0.0


def test_runtimes_one_ns_apart_differ():
    target = 2**40 + np.arange(3)  # equal as float32
    assert kendall_tau(target, np.arange(3, dtype=np.float32)) == pytest.approx(1)
    assert pair_accuracy(target, np.arange(3, dtype=np.float32)) == 1.0


def test_slowdown_and_tile_score_by_hand():
    target = np.array([30.0, 10, 20, 40])
    score = np.array([1.0, 4, 2, 3])  # ranks 30, 20, 40, 10
    assert [slowdown(target, score, k) for k in (1, 2, 3, 4, 9)] == [2.0, 1.0, 1.0, 0.0, 0.0]
    assert tile_score(target, score, 1) == -1.0 and tile_score(target, score) == 1.0
    # the competition's formula: 2 - min(chosen) / min(all)
    assert tile_score(target, score, 2) == 2 - 20 / 10


def test_equal_scores_keep_the_order_of_the_file():
    assert ranking(np.array([1.0, 0, 1, 0])).tolist() == [1, 3, 0, 2]
    assert slowdown(np.array([5.0, 1]), np.zeros(2), 1) == 4.0


def test_pair_accuracy_ends():
    target = np.array([1.0, 2, 3, 3])
    assert pair_accuracy(target, target) == 1.0
    assert pair_accuracy(target, -target) == 0.0
    assert pair_accuracy(target, np.zeros(4)) == 0.5
    assert pair_accuracy(np.ones(4), target) == 0.5
    assert pair_accuracy(np.array([1.0, 2]), np.array([0.0, 0])) == 0.5


def test_within_graph_rank():
    assert within_graph_rank(np.array([30.0, 10, 20])).tolist() == [1.0, 0.0, 0.5]
    assert within_graph_rank(np.array([1.0, 1, 2])).tolist() == [0.25, 0.25, 1.0]
    assert within_graph_rank(np.full(3, 7.0)).tolist() == [0.5] * 3
    assert within_graph_rank(np.array([7.0])).tolist() == [0.5]
