"""Boosted trees that score a configuration as a sum of looked-up costs.

The trees see one row at a time (`utils.cost_rows`): a slot, or two facing layouts. Only sums over
a configuration's rows can be compared with runtimes, so the trees are trained through the sum:
with s = M f, M [configurations, rows] sparse holding the weights of the rows, the loss on s has
the row gradient M' g, and the Hessian of a row is bounded by (M o M)' (h sqrt(terms)).
Once trained, each row of a graph is predicted once; scoring a configuration is a sum of lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xgboost
from scipy import sparse

from utils.cost_rows import ROW_VERSION, CostRows, row_weights, score_rows
from utils.dataset import DataError
from utils.model_files import load_trees, save_trees

PARAMETERS = {
    "tree_method": "hist",
    "max_depth": 6,
    "eta": 0.3,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "lambda": 1.0,
    "base_score": 0.0,
}
TREES = 300
CHILD_WEIGHT = 20.0  # min_child_weight with ENOUGH configurations or more, in proportion below:
ENOUGH = 1000  # the Hessian of a leaf grows with the configurations that contain its rows
PAIRS = 8  # sampled a configuration
LOG, LINEAR = 0.0, 1.0  # gammas of the row weights, see `row_weights`
GAMMAS = (LOG, 0.25, 0.5, LINEAR)


@dataclass(frozen=True)
class CostTables:
    """A fitted model: what a row costs, in units of the row's weight."""

    names: tuple[str, ...]
    gamma: float
    booster: xgboost.Booster


@dataclass(frozen=True)
class Pairs:
    """Pairs of configurations of one graph, `slow` slower than `fast`; weights of mean 1."""

    slow: np.ndarray  # int64 [pairs]
    fast: np.ndarray
    weight: np.ndarray  # float64 [pairs]


def sample_pairs(
    target: np.ndarray, rng: np.random.Generator, count: int = PAIRS, weighted: bool = True
) -> Pairs:
    """`count` pairs a configuration, or all where these are fewer; equal targets make none.

    target: float64 [c], of one graph. `weighted`: a pair counts by the root of the difference of
    its log targets, so that near ties, mostly noise, count little.
    """
    size = len(target)
    if size * count < size * (size - 1) // 2:
        a = np.repeat(np.arange(size), count)
        b = (a + rng.integers(1, size, len(a))) % size
    else:
        a, b = np.triu_indices(size, 1)
    differ = target[a] != target[b]
    a, b = a[differ], b[differ]
    slower = target[a] > target[b]
    weight = np.ones(len(a))
    if weighted and len(a):
        weight = np.sqrt(np.abs(np.log(target[a]) - np.log(target[b])))
        weight /= weight.mean()
    return Pairs(np.where(slower, a, b), np.where(slower, b, a), weight)


def sum_matrix(rows: CostRows, terms: np.ndarray, gamma: float) -> sparse.csr_array:
    """M of one graph: sparse float64 [b, Q], the weight of each row that a configuration contains.

    terms: int32 [b, T] from `cost_rows.terms`.
    """
    weight = row_weights(rows, gamma)[terms]
    start = np.arange(len(terms) + 1) * terms.shape[1]
    matrix = sparse.csr_array(
        (weight.ravel(), terms.ravel(), start), shape=(len(terms), len(rows.kind))
    )
    matrix.eliminate_zeros()  # rows without a weight: a kind that was left out
    return matrix


def make_objective(matrix: sparse.csr_array, pairs: Pairs) -> Callable:
    """The function of (f, data) that XGBoost asks for each row's gradient and Hessian.

    The loss is the sum over pairs of weight x log(1 + exp(s[fast] - s[slow])), s = M f.
    """
    across = matrix.T.tocsr()
    squared = sparse.csr_array((across.data**2, across.indices, across.indptr), across.shape)
    root = np.sqrt(np.diff(matrix.indptr))
    size = matrix.shape[0]

    def objective(value: np.ndarray, _=None) -> tuple[np.ndarray, np.ndarray]:
        score = matrix @ value.astype(np.float64)
        wrong = 1.0 / (1.0 + np.exp(score[pairs.slow] - score[pairs.fast]))
        pull = pairs.weight * wrong
        bend = pull * (1.0 - wrong)
        gradient = np.bincount(pairs.fast, pull, size) - np.bincount(pairs.slow, pull, size)
        hessian = np.bincount(pairs.fast, bend, size) + np.bincount(pairs.slow, bend, size)
        return across @ gradient, squared @ (hessian * root)

    return objective


def loss(matrix: sparse.csr_array, pairs: Pairs, value: np.ndarray) -> float:
    """What `make_objective` is the gradient of."""
    score = matrix @ value
    gap = score[pairs.fast] - score[pairs.slow]
    return float((pairs.weight * np.logaddexp(0.0, gap)).sum())


def fit(
    rows: Sequence[CostRows],
    terms: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    gamma: float = LINEAR,
    weighted: bool = True,
    seed: int = 0,
    threads: int = 2,
    trees: int = TREES,
    **parameters,
) -> CostTables:
    """Fit one model to graphs, each given by its rows, terms int32 [c, T] and target float64 [c].

    `weighted` False: all pairs of a graph count alike. `parameters` override PARAMETERS.
    Raises DataError when no graph has two configurations that differ in rows and target.
    """
    rng = np.random.default_rng(seed)
    matrices = [sum_matrix(r, t, gamma) for r, t in zip(rows, terms)]
    drawn = [sample_pairs(np.asarray(t, np.float64), rng, weighted=weighted) for t in targets]
    if not sum(m.nnz and len(p.slow) for m, p in zip(matrices, drawn)):
        raise DataError("cost tables: no graph with configurations to tell apart")
    matrix = sparse.block_diag(matrices, format="csr")
    used = np.flatnonzero(np.bincount(matrix.indices, minlength=matrix.shape[1]))
    matrix = sparse.csr_array(matrix.tocsc()[:, used])  # no configuration contains the others
    offset = np.cumsum([0, *map(len, targets)])
    pairs = Pairs(
        np.concatenate([p.slow + o for p, o in zip(drawn, offset)]),
        np.concatenate([p.fast + o for p, o in zip(drawn, offset)]),
        np.concatenate([p.weight for p in drawn]),
    )
    features = np.concatenate([r.features for r in rows])[used]
    data = xgboost.QuantileDMatrix(features, nthread=threads)
    child = CHILD_WEIGHT * min(1.0, offset[-1] / ENOUGH)
    settings = PARAMETERS | {"min_child_weight": child, "seed": seed, "nthread": threads}
    settings |= parameters
    booster = xgboost.train(settings, data, trees, obj=make_objective(matrix, pairs))
    return CostTables(rows[0].names, gamma, booster)


def row_values(model: CostTables, rows: CostRows, threads: int = 2) -> np.ndarray:
    """float64 [Q]: what each row adds to the score. Raises DataError for other features."""
    if rows.names != model.names:
        raise DataError("cost tables: these rows have other features than the model")
    model.booster.set_param({"nthread": threads})
    cost = model.booster.inplace_predict(rows.features, predict_type="margin")
    return cost.astype(np.float64) * row_weights(rows, model.gamma)


def predict(model: CostTables, graph, rows: CostRows, threads: int = 2) -> np.ndarray:
    """Scores of all configurations of a graph, float64 [c], larger = slower."""
    return score_rows(graph, rows, row_values(model, rows, threads), threads)


def save_model(model: CostTables, stem: Path, **facts) -> None:
    """Write `stem`.ubj (the trees) and `stem`.json (features, gamma, version and `facts`)."""
    about = {"model": "cost_tables", "gamma": model.gamma} | facts | {"names": model.names}
    save_trees(stem, model.booster, ROW_VERSION, **about)


def load_model(stem: Path) -> CostTables:
    """Read what `save_model` wrote. Raises DataError for another version of the rows."""
    trees, about = load_trees(stem, ROW_VERSION)
    return CostTables(tuple(about["names"]), about["gamma"], trees)
