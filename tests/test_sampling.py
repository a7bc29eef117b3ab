"""Sampling of configurations: evenly over the ranks, by the seed."""

import numpy as np
import pytest

from utils.sampling import sample_by_rank


@pytest.mark.parametrize("size, count", [(100, 10), (101, 10), (7, 3), (100_040, 2000), (5, 4)])
def test_each_run_of_ranks_gives_one(size, count):
    rng = np.random.default_rng(0)
    target = rng.permutation(size).astype(float)  # the rank itself
    chosen = sample_by_rank(target, count, rng)
    assert len(chosen) == count and (np.diff(chosen) > 0).all()
    bounds = np.arange(count + 1) * size // count
    ranks = np.sort(target[chosen])
    assert (ranks >= bounds[:-1]).all() and (ranks < bounds[1:]).all()


def test_every_configuration_can_be_drawn_and_the_seed_decides():
    target = np.arange(30.0)[::-1]
    draws = [sample_by_rank(target, 7, np.random.default_rng(seed)) for seed in range(100)]
    assert set(np.concatenate(draws).tolist()) == set(range(30))
    again = sample_by_rank(target, 7, np.random.default_rng(3))
    np.testing.assert_array_equal(draws[3], again)


def test_few_configurations_are_all_taken_and_ties_do_no_harm():
    assert sample_by_rank(np.array([3.0, 1, 2]), 3, np.random.default_rng(0)).tolist() == [0, 1, 2]
    assert sample_by_rank(np.array([3.0, 1]), 9, np.random.default_rng(0)).tolist() == [0, 1]
    chosen = sample_by_rank(np.zeros(50), 5, np.random.default_rng(0))
    assert (chosen // 10).tolist() == [0, 1, 2, 3, 4]


def test_a_mean_over_the_sample_is_near_the_mean_of_all():
    target = np.random.default_rng(1).lognormal(0, 2, 50_000)
    means = [np.log(target[sample_by_rank(target, 500, np.random.default_rng(s))]).mean()
             for s in range(20)]
    assert np.std(means) < 0.1 * 2 / np.sqrt(500)  # a plain draw: 2 / sqrt(500)
