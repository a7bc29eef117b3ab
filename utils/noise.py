"""The noise of measured runtimes, from repeated rounds or from configurations that repeat.

Each variance is known from a few numbers only, so it is shrunk towards those of configurations of
similar runtime (Smyth 2004, "Linear models and empirical Bayes methods for assessing differential
expression in microarray experiments", section 3); what is left of the uncertainty makes the noise
Student's t instead of normal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import special, stats

from utils.coding import deduplicate

if TYPE_CHECKING:
    from utils.coding import Graph

SPLITS = 12  # ways to halve the rounds
CAUTION = 15
MIN_REPEATS = 8  # degrees of freedom without which repeats say nothing about noise


class Noise(NamedTuple):
    """Noise of log target: Student's t, one scale and one number of degrees of freedom each."""

    scale: np.ndarray  # float64 [c]
    dof: np.ndarray  # float64 [c], inf: normal


def round_statistic(rounds: np.ndarray, runtime: np.ndarray):
    """The function [c, r] -> [c] that made `runtime` out of `rounds`: whichever comes nearest of
    the trimmed mean, the median, the mean of the lower half, the minimum and the mean."""
    def lower_half(x):
        return np.sort(x, axis=1)[:, : (x.shape[1] + 1) // 2].mean(1)

    candidates = (lambda x: stats.trim_mean(x, 0.2, axis=1), lambda x: np.median(x, 1), lower_half,
                  lambda x: x.min(1), lambda x: x.mean(1))
    return min(candidates, key=lambda f: np.abs(f(rounds) - runtime).sum())


def measurement_noise(graph: Graph) -> Noise | None:
    """Noise of the log target of every row of the file; None if nothing was measured twice."""
    _, group, count = deduplicate(graph)
    log_target = np.log(np.maximum(graph.target, 1e-300))
    rounding = 1 / 12 / np.maximum(graph.runtime, 1) ** 2  # variance of whole ns
    repeats = _repeat_variance(log_target, group, count)
    if graph.rounds is not None and graph.rounds.shape[1] > 1:
        dof = (graph.rounds.shape[1] - 1) / 2  # half of the mean's: low statistics use fewer rounds
        variance = _split_variance(graph.rounds, graph.runtime)
        noise = shrink(log_target, variance + rounding, np.full(graph.configs, dof))
        extra = count.sum() - len(count)
        if extra >= MIN_REPEATS:  # compiling again adds noise that rounds can't see
            within = (repeats * (count - 1)).sum() / extra
            rows = count[group] > 1
            spread = 1 / (1 - 2 / np.maximum(noise.dof[rows], 3))  # variance of t over scale**2
            ratio = within / np.mean(noise.scale[rows] ** 2 * spread)
            # few repeats say little: meet no widening half way at CAUTION of them
            widen = max(1.0, (CAUTION + extra * ratio) / (CAUTION + extra))
            noise = Noise(noise.scale * np.sqrt(widen), noise.dof)
        return noise
    if count.sum() - len(count) < MIN_REPEATS:
        return None
    level = np.bincount(group, log_target) / count
    noise = shrink(level, repeats + np.bincount(group, rounding) / count, count - 1.0)
    return Noise(noise.scale[group], noise.dof[group])


def _split_variance(rounds: np.ndarray, runtime: np.ndarray) -> np.ndarray:
    """float64 [c]: variance of the log of the runtime statistic, from the differences between
    halves of the rounds, several ways to halve."""
    statistic = round_statistic(rounds, runtime)
    logs = np.log(np.maximum(rounds, 1))
    half = rounds.shape[1] // 2
    rng = np.random.default_rng(0)
    total = np.zeros(len(rounds))
    for _ in range(SPLITS):
        order = rng.permutation(rounds.shape[1])
        one, other = statistic(logs[:, order[:half]]), statistic(logs[:, order[half : 2 * half]])
        total += (one - other) ** 2 / 2
    # the whole varies about half as much as a half; how much exactly depends on the statistic and
    # on the noise, so look it up in rounds put together from all configurations' deviations
    spread = logs.std(1)
    known = spread > 0
    deviation = (logs[known] - logs[known].mean(1, keepdims=True)) / spread[known, None]
    if not len(deviation):
        return total / SPLITS / 2
    mixed = rng.choice(deviation.ravel(), (20_000, rounds.shape[1]))
    return total / SPLITS * (statistic(mixed).var() / statistic(mixed[:, :half]).var())


def _repeat_variance(log_target, group, count) -> np.ndarray:
    """float64 [groups]: sample variance among repeats of one configuration; 0 for single ones."""
    mean = np.bincount(group, log_target) / count
    square = np.bincount(group, (log_target - mean[group]) ** 2)
    return square / np.maximum(count - 1, 1)


def shrink(level: np.ndarray, variance: np.ndarray, dof: np.ndarray) -> Noise:
    """Shrink sample variances [c] of `dof` degrees of freedom towards those at a similar `level`.

    True variances are taken as scaled inverse chi-square around a trend in the rank of `level`
    (Smyth 2004, eq. 1-4, with a trend); where dof is 0 only the trend is known.
    """
    known = dof > 0
    half, variance_known = dof[known] / 2, variance[known]
    logs = np.log(variance_known) - special.digamma(half) + np.log(half)
    weight = 1 / special.polygamma(1, half)  # 1 / variance of the log of a sample variance
    rank = stats.rankdata(level) / len(level) - 0.5
    trend = _line(rank[known], logs, weight, rank)
    surplus = (logs - trend[known]) ** 2 - 1 / weight
    error = surplus.std() / np.sqrt(len(logs))
    extra = np.average(surplus, weights=weight) - error  # variance of the logs of true variances
    if extra < 0.01:  # one true variance at each level: then the plain mean is the better scale
        trend += np.log((half @ variance_known) / (half @ np.exp(trend[known])))
        return Noise(np.exp(trend / 2), np.full(len(level), np.inf))
    prior_dof = 2 * _inverse_trigamma(extra)
    center = np.exp(trend + special.digamma(prior_dof / 2) - np.log(prior_dof / 2))
    total = prior_dof + dof
    return Noise(np.sqrt((prior_dof * center + dof * variance) / total), total)


def _line(x: np.ndarray, y: np.ndarray, weight: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The weighted least squares line through (x, y) at `at`; flat unless its slope is three
    standard errors from 0, because a wrong slope costs more than a missing one."""
    middle, height = np.average(x, weights=weight), np.average(y, weights=weight)
    square = weight @ (x - middle) ** 2
    slope = (weight * (x - middle)) @ (y - height) / square if square > 0 else 0.0
    left = y - height - slope * (x - middle)
    if square == 0 or slope**2 * square < 9 * np.average(left**2, weights=weight) * weight.mean():
        slope = 0.0
    return height + slope * (at - middle)


def _inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = value, by Newton's method (Smyth 2004, appendix)."""
    x = 0.5 + 1 / value
    for _ in range(50):
        tri = special.polygamma(1, x)
        x += tri * (1 - tri / value) / special.polygamma(2, x)
    return float(x)
