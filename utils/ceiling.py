"""How well could anybody rank a graph? Measurements are noisy, so a perfect model scores below 1.

The ceiling of a graph is the score that an oracle, which knows every configuration's true runtime,
would get against the *measured* target. True runtimes are not known, so they are drawn:

1. The noise of each measurement is estimated from its rounds and from configurations that files
   repeat (`utils.noise`).
2. The distribution of true runtimes is the discrete deconvolution of the measurements: the
   non-parametric maximum likelihood (Kiefer and Wolfowitz 1956), by EM on a grid (Laird 1978),
   stopped early, which keeps a smooth distribution smooth.
3. Each configuration's true runtime is drawn from its posterior. If the noise is right, the pair
   (drawn, measured) is distributed like (true, measured), so the mean score of the draws is the
   oracle's. A crowd of configurations whose measurements scatter no more than the noise is drawn
   equal, as if compiled to the same code; tau-b rewards an oracle for knowing such ties.

On synthetic data the ceiling lies within .02 of the truth if true runtimes scatter at least twice
as much as the noise. Below that nobody can tell close plateaus from one broad peak: expect .05.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from utils.coding import deduplicate
from utils.metrics import kendall_tau, tile_score
from utils.noise import Executables, Noise, measurement_noise, round_statistic

if TYPE_CHECKING:
    from utils.coding import Graph

DRAWS = 16
EM_STEPS = 100
EM_CONFIGS = 2000  # configurations that the distribution is fitted to
SCORED_CONFIGS = 6000  # rows that tau is estimated on; the tile score needs all
GRID_STEP = 1 / 6  # of the noise
GRID_POINTS = 1000
# A peak of the distribution within REACH of the noise that holds CONTRAST times the mass of the
# noise's width on either side may be one value (`_plateaus`).
REACH, CONTRAST = 0.75, 15


def log_likelihood(y: np.ndarray, noise: Noise, grid: np.ndarray) -> np.ndarray:
    """float64 [c, g]: log density of measurement `y` if the true value is at a grid point, up to a
    constant per row."""
    z2 = ((y[:, None] - grid) / noise.scale[:, None]) ** 2
    dof = noise.dof[:, None]
    if np.isinf(noise.dof).all():
        return -z2 / 2
    return -(dof + 1) / 2 * np.log1p(z2 / dof)


def _grid(y: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Support points among the sorted measurements, at least `GRID_STEP` of the noise apart, and
    the noise there."""
    order = np.argsort(y)
    y = y[order]
    local = ndimage.median_filter(scale[order], min(len(y), 31), mode="nearest")
    step = GRID_STEP
    while True:
        keep = [0]
        for i in range(1, len(y)):
            if y[i] - y[keep[-1]] >= step * local[i]:
                keep.append(i)
        if len(keep) <= GRID_POINTS:
            return y[keep], local[keep]
        step *= 1.5


def deconvolve(
    likelihood: np.ndarray, weight: np.ndarray, steps: int = EM_STEPS, start=None
) -> np.ndarray:
    """float64 [g]: probabilities of the support points, from likelihoods [c, g] of observations of
    the given weights, by EM from `start` or equal probabilities."""
    prob = np.full(likelihood.shape[1], 1 / likelihood.shape[1]) if start is None else start
    weight = weight / weight.sum()
    for _ in range(steps):
        prob = prob * ((weight / (likelihood @ prob)) @ likelihood)
    return prob / prob.sum()


def draw_truth(
    y: np.ndarray, noise: Noise, group: np.ndarray, draws: int = DRAWS, seed: int = 0
) -> np.ndarray:
    """float64 [draws, c]: true values drawn from their posterior.

    `y` [c]: measured log targets; `group` [c]: rows of one configuration have one true value.
    """
    rng = np.random.default_rng(seed)
    groups = int(group.max()) + 1
    count = np.bincount(group, minlength=groups)
    # one measurement for each configuration: the mean of its rows, for support points and levels
    level = np.bincount(group, y) / count
    scale = np.sqrt(np.bincount(group, noise.scale**2) / count / count)
    fitted = rng.permutation(groups)[:EM_CONFIGS]
    grid, local = _grid(level[fitted], scale[fitted])
    likelihood = _group_likelihood(y, noise, group, fitted, grid)
    prob = deconvolve(likelihood, np.ones(len(fitted)))
    prob, plateau = _plateaus(grid, local, likelihood, prob)
    width = np.minimum(np.gradient(grid), local * GRID_STEP) if len(grid) > 1 else np.zeros(1)
    width[plateau] = 0
    prob = prob + 1e-12  # no measurement is impossible
    out = np.empty((draws, groups))
    for start in range(0, groups, 4096):
        part = np.arange(start, min(start + 4096, groups))
        cumulative = np.cumsum(_group_likelihood(y, noise, group, part, grid) * prob, axis=1)
        for d in range(draws):
            u = rng.random(len(part)) * cumulative[:, -1]
            at = (cumulative < u[:, None]).sum(1).clip(max=len(grid) - 1)
            out[d, part] = grid[at] + width[at] * (rng.random(len(part)) - 0.5)
    return out[:, group]


def _group_likelihood(y, noise, group, chosen, grid) -> np.ndarray:
    """float64 [chosen, g]: likelihood of all rows of the chosen groups, largest 1."""
    place = np.full(int(group.max()) + 1, -1)
    place[chosen] = np.arange(len(chosen))
    rows = np.flatnonzero(place[group] >= 0)
    rows = rows[np.argsort(place[group[rows]], kind="stable")]
    total = np.zeros((len(chosen), len(grid)))
    for start in range(0, len(rows), 4096):  # a group may have 100,000 rows
        part = rows[start : start + 4096]
        one = Noise(noise.scale[part], noise.dof[part])
        owner, first = np.unique(place[group[part]], return_index=True)
        total[owner] += np.add.reduceat(log_likelihood(y[part], one, grid), first, axis=0)
    return np.exp(total - total.max(1, keepdims=True))


def _plateaus(grid, local, likelihood, prob) -> tuple[np.ndarray, np.ndarray]:
    """(new probabilities [g], bool [g]: which support points are one true value of many).

    EM needs very many steps to make a sharp peak. So a peak that holds `CONTRAST` times the mass
    beside it is put on one point if the measurements are then hardly less likely.
    """
    plateau = np.zeros(len(grid), bool)
    rows = len(likelihood)
    before = np.log(likelihood @ prob).sum()
    for top in np.argsort(-prob):
        if plateau[top] or prob[top] == 0:
            continue
        center = grid[top]
        for _ in range(5):  # mean shift: the highest point need not be the middle
            inside = (np.abs(grid - center) <= REACH * local[top]) & ~plateau
            mass = prob[inside].sum()
            center = (prob[inside] @ grid[inside]) / mass
        if mass * rows < max(20, 0.02 * rows):
            continue
        around = (np.abs(grid - center) <= (REACH + 1) * local[top]) & ~inside
        if mass < CONTRAST * max(prob[around & (grid < center)].sum(),
                                 prob[around & (grid > center)].sum()):
            continue
        at = np.flatnonzero(inside)[np.abs(grid[inside] - center).argmin()]
        trial = np.where(inside, 0, prob)
        trial[at] = mass
        trial = deconvolve(likelihood, np.ones(rows), 20, trial)
        after = np.log(likelihood @ trial).sum()
        if after > before - 2:
            prob, before, plateau[at] = trial, max(before, after), True
    return prob, plateau


def noise_ceiling(
    graph: Graph, executables: Executables | None = None, draws: int = DRAWS, seed: int = 0
) -> float | None:
    """Score of a noise-free oracle on this graph against its measured target: Kendall's tau
    (layout) or the tile score. None if unlabelled, or if nothing was measured twice.

    executables: see `utils.noise.measurement_noise`.
    """
    if not graph.labelled:
        return None
    noise = measurement_noise(graph, executables)
    if noise is None:
        return None
    _, group, _ = deduplicate(graph)
    y = np.log(np.maximum(graph.target, 1e-300))
    if not graph.file.tile and graph.configs > SCORED_CONFIGS:
        rows = np.random.default_rng(seed).permutation(graph.configs)[:SCORED_CONFIGS]
        y, noise = y[rows], Noise(noise.scale[rows], noise.dof[rows])
        group = np.unique(group[rows], return_inverse=True)[1]
    truth = draw_truth(y, noise, group, draws, seed)
    if graph.file.tile:
        target = np.exp(y - y.min())
        return float(np.mean([tile_score(target, drawn) for drawn in truth]))
    return float(np.mean([kendall_tau(y, drawn) for drawn in truth]))


def repeatability(graph: Graph) -> float | None:
    """Tau between two measurements of the same configurations: the runtime statistic of the even
    and of the odd rounds; without rounds, the first two measurements of repeated configurations.
    None if unlabelled or fewer than two configurations were measured twice."""
    if not graph.labelled:
        return None
    if graph.rounds is not None and graph.rounds.shape[1] > 1:
        statistic = round_statistic(graph.rounds, graph.runtime)
        return kendall_tau(statistic(graph.rounds[:, ::2]), statistic(graph.rounds[:, 1::2]))
    _, group, count = deduplicate(graph)
    order = np.argsort(group, kind="stable")
    start = (np.cumsum(count) - count)[count > 1]
    if len(start) < 2:
        return None
    return kendall_tau(graph.target[order[start]], graph.target[order[start + 1]])
