"""The noise of measured runtimes, from repeated rounds or from configurations that repeat.

Rounds belong to one executable. The same configuration compiled again runs at another speed, and
in a process of many executables by more than rounds show: repeats of a file that has rounds tell
how much. They are few in a graph, so they are fitted for a whole collection (`fit_executables`).

Each variance is known from a few numbers only, so it is shrunk towards those of configurations of
similar runtime (Smyth 2004, "Linear models and empirical Bayes methods for assessing differential
expression in microarray experiments", section 3); what is left of the uncertainty makes the noise
Student's t instead of normal.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import optimize, signal, special, stats

from utils.coding import deduplicate

if TYPE_CHECKING:
    from utils.coding import Graph

SPLITS = 12  # ways to halve the rounds
MIN_REPEATS = 8  # degrees of freedom without which repeats say nothing about noise
ENOUGH_REPEATS = 30  # differences from which the tails of a distribution can be fitted
DOFS = (2.1, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0, float("inf"))  # of Student's t
SCALES = (np.log(0.5), np.log(100.0))  # logs of the least and the largest that are tried
FAR = 400.0  # scales of Student's t at which its density is cut off


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


class Executables(NamedTuple):
    """Noise of a measurement in units of what its own rounds show: Student's t."""

    scale: float = 1.0
    dof: float = float("inf")


def measurement_noise(graph: Graph, executables: Executables | None = None) -> Noise | None:
    """Noise of the log target of every row of the file; None if nothing was measured twice.

    executables: how much more they differ than their rounds; None: as this graph's repeats say
    where it has ENOUGH_REPEATS of them, else no more.
    """
    _, group, count = deduplicate(graph)
    log_target = np.log(np.maximum(graph.target, 1e-300))
    if graph.rounds is not None and graph.rounds.shape[1] > 1:
        noise = _round_noise(graph, log_target)
        if executables is None:
            executables = fit_executables(_differences(log_target, group, count, noise))
        return Noise(noise.scale * executables.scale, np.minimum(noise.dof, executables.dof))
    if count.sum() - len(count) < MIN_REPEATS:
        return None
    level = np.bincount(group, log_target) / count
    rounding = np.bincount(group, _rounding(graph)) / count
    noise = shrink(level, _repeat_variance(log_target, group, count) + rounding, count - 1.0)
    return Noise(noise.scale[group], noise.dof[group])


def repeat_differences(graph: Graph) -> np.ndarray:
    """float64 [k]: log target of each repeat less that of its configuration's first measurement,
    over the noise that the rounds of both show. Empty for graphs without labels or rounds.

    The configuration of the first row is left out. In layout files it is the compiler's own
    choice, compiled first and repeated in most files: in the sample's random searches its repeat
    is 4 to 5 % faster (median), which says nothing of the others.
    """
    if not graph.labelled or graph.rounds is None or graph.rounds.shape[1] < 2:
        return np.empty(0)
    _, group, count = deduplicate(graph)
    log_target = np.log(np.maximum(graph.target, 1e-300))
    return _differences(log_target, group, count, _round_noise(graph, log_target))


def fit_executables(differences: np.ndarray) -> Executables:
    """The Student's t whose differences of two draws, over sqrt(2), are most like those of
    `repeat_differences` (maximum likelihood); rounds alone if these are few.

    Repeats are compiled after all others and are faster on the whole. That shifts all of them and
    changes no ranking, so differences are taken from their median.
    """
    if len(differences) < ENOUGH_REPEATS:
        return Executables()
    apart = np.abs(differences - np.median(differences))

    def loss(log_scale: float, dof: float) -> float:
        distance = apart / np.exp(log_scale)
        density = np.interp(distance, *_difference_density(dof))
        return len(differences) * log_scale - np.log(density).sum()

    fits = []
    for dof in DOFS:
        found = optimize.minimize_scalar(loss, bounds=SCALES, args=(dof,), method="bounded")
        fits.append((found.fun, float(np.exp(found.x)), dof))
    return Executables(*min(fits)[1:])


@cache
def _difference_density(dof: float) -> tuple[np.ndarray, np.ndarray]:
    """Points from 0 on, and there the density of (a - b) / sqrt(2) for a and b of Student's t."""
    step = 0.02
    x = np.arange(-FAR, FAR + step / 2, step)
    one = stats.norm.pdf(x) if np.isinf(dof) else stats.t.pdf(x, dof)
    both = np.clip(signal.fftconvolve(one, one, mode="same"), 1e-30, None) * step * np.sqrt(2)
    return x[len(x) // 2 :] / np.sqrt(2), both[len(x) // 2 :]


def _differences(log_target, group, count, noise: Noise) -> np.ndarray:
    order = np.argsort(group, kind="stable")
    first = np.repeat(order[np.cumsum(count) - count], count)
    both = np.hypot(noise.scale[order], noise.scale[first])
    kept = (order != first) & (group[order] != group[0])
    return ((log_target[order] - log_target[first]) / both)[kept]


def _round_noise(graph: Graph, log_target: np.ndarray) -> Noise:
    dof = (graph.rounds.shape[1] - 1) / 2  # half of the mean's: low statistics use fewer rounds
    variance = _split_variance(graph.rounds, graph.runtime) + _rounding(graph)
    return shrink(log_target, variance, np.full(graph.configs, dof))


def _rounding(graph: Graph) -> np.ndarray:
    """float64 [c]: variance of the log of whole ns."""
    return 1 / 12 / np.maximum(graph.runtime, 1) ** 2


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
