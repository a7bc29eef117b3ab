"""Rank the configurations of a graph: two boosted-tree models and five untrained floors.

A model is fitted on rows of the feature tables (one row a distinct configuration) and gives a
score, float64, larger = slower. Scores compare configurations of one graph, never of two graphs.

Models: `rank_pairwise` (XGBoost, pairwise logistic loss inside each graph) and `hist_gbrt`
(scikit-learn's regressor on the log runtime, standardized within each graph). A name after a
slash is an ablation, for example `rank_pairwise/no_copies`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import xgboost
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import ThreadpoolController  # comes with scikit-learn

from utils.dataset import DataError, GraphFile
from utils.metrics import within_graph_rank
from utils.model_files import load_trees, save_trees

# Raised whenever a feature column changes its meaning: a saved model refuses other versions.
FEATURE_VERSION = 3
TRAINED = ("rank_pairwise", "hist_gbrt")
FLOORS = ("random", "config_frequency", "choice_frequency", "byte_count", "loop_bytes")
# Ablation -> prefixes of the feature columns that it leaves out. Transductive columns (how often
# a choice occurs in its file) mean nothing for a new program, so only `with_trans` sees them.
LEFT_OUT = {
    "": ("trans_",),
    "no_stats": ("trans_", "stat_"),
    "no_mp": ("trans_", "mp_"),
    "no_copies": ("trans_", "copy_"),
    "no_loops": ("trans_", "loop_"),
    "with_trans": (),
    "config_only": ("trans_", "stat_", "mp_", "copy_", "node_", "loop_"),
}
ABLATIONS = (
    "rank_pairwise/no_stats",
    "rank_pairwise/no_mp",
    "rank_pairwise/no_copies",
    "rank_pairwise/no_loops",
    "rank_pairwise/with_trans",
    "hist_gbrt/config_only",
)
# Floor -> feature columns whose sum it is.
FLOOR_COLUMNS = {
    "choice_frequency": ("trans_choice_log_frequency",),
    "byte_count": ("node_byte_count",),
    "loop_bytes": ("loop_bytes",),
}
LAYOUT_FLOORS = ("choice_frequency", "loop_bytes")
TILE_BYTE_COUNT = "tile_count"
TOP_LABEL = 30.0  # XGBoost takes labels from 0 to 31

RANK_PARAMETERS = {
    "objective": "rank:pairwise",
    "lambdarank_pair_method": "mean",  # the default, topk, learns the fastest few only
    "lambdarank_num_pair_per_sample": 8,
    "lambdarank_score_normalization": False,  # it stalls training: .79 -> .81 tau on a toy
    "tree_method": "hist",
    "max_bin": 64,
    # Few graphs, many columns that say nearly the same: slow, on a part of both.
    "max_depth": 5,
    "eta": 0.03,
    "subsample": 0.5,
    "colsample_bytree": 0.5,
    "colsample_bynode": 0.2,
}
RANK_TREES = 400
CHILD_WEIGHT = 20.0  # min_child_weight with ENOUGH rows or more, in proportion below: the Hessian
ENOUGH = 3000  # of a leaf grows with its rows
HIST_PARAMETERS = {
    "max_iter": 100,
    "learning_rate": 0.1,
    "max_leaf_nodes": 31,
    "max_features": 0.5,
    "early_stopping": False,  # it would split the rows of one graph
}


@dataclass(frozen=True)
class Ranker:
    """A fitted model and the feature columns that it reads, in its order."""

    model: str
    columns: tuple[str, ...]
    estimator: xgboost.Booster | HistGradientBoostingRegressor


def columns_of(model: str, names: Sequence[str]) -> tuple[str, ...]:
    """The feature columns that a model reads, in the order of `names`.

    Raises KeyError for an unknown ablation.
    """
    left_out = LEFT_OUT[model.partition("/")[2]]
    return tuple(name for name in names if not name.startswith(left_out))


def ablations_of(names: Sequence[str]) -> tuple[str, ...]:
    """The ablations that change anything, given the feature columns there are."""
    full = columns_of("rank_pairwise", names)
    seen = {model: columns_of(model, names) for model in ABLATIONS}
    return tuple(model for model, columns in seen.items() if columns and columns != full)


def within_graph_target(model: str, target: np.ndarray, graph: np.ndarray) -> np.ndarray:
    """What a model is fitted to, float64 [rows]; larger = slower, comparable inside a graph.

    `rank_pairwise`: rank within the graph, 0 (fastest) to TOP_LABEL, ties share their mean.
    `hist_gbrt`: logarithm of the target, mean 0 and standard deviation 1 within each graph.
    """
    result = np.zeros(len(target))
    for rows in _rows_of_graphs(graph):
        if model.startswith("rank_pairwise"):
            result[rows] = TOP_LABEL * within_graph_rank(target[rows])
        else:
            log = np.log(np.maximum(target[rows], np.finfo(float).tiny))
            result[rows] = (log - log.mean()) / (log.std() or 1.0)
    return result


def _rows_of_graphs(graph: np.ndarray) -> list[np.ndarray]:
    order = np.argsort(graph, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(graph[order])) + 1)


def fit(
    model: str,
    features: np.ndarray,
    names: Sequence[str],
    target: np.ndarray,
    graph: np.ndarray,
    seed: int = 0,
    threads: int = 2,
) -> Ranker:
    """Fit a model on the rows of all graphs together.

    features: float32 [rows, columns] with `names` of its columns; target: float64 [rows], larger
    = slower; graph: int [rows], which graph a row belongs to, in any order. The same rows in
    another order give the same model up to sampling; the same seed and order, exactly the same.
    Columns that are constant are left out. Raises DataError when there is nothing to learn from,
    ValueError for an unknown model.
    """
    if model.partition("/")[0] not in TRAINED:
        raise ValueError(f"no trained model '{model}'; there are {', '.join(TRAINED)}")
    if not len(features) == len(target) == len(graph):
        raise ValueError("features, target and graph must have one row a configuration each")
    columns = columns_of(model, names)
    if not len(features):
        raise DataError(f"{model}: no rows to train on")
    if not np.isfinite(target).all():
        raise DataError(f"{model}: training rows without a runtime")
    whole = _select(features, names, columns)
    varies = np.fmin.reduce(whole) < np.fmax.reduce(whole)  # fmin, fmax: missing values aside
    columns = tuple(name for name, keep in zip(columns, varies) if keep)
    if not columns:
        raise DataError(f"{model}: no feature column that varies to train on")
    order = np.argsort(graph, kind="stable")  # XGBoost wants the rows of a query side by side
    features = whole[:, varies][order]
    label = within_graph_target(model, target, graph)[order]
    if model.startswith("rank_pairwise"):
        data = xgboost.QuantileDMatrix(
            features, label=label, qid=graph[order], nthread=threads,
            max_bin=RANK_PARAMETERS["max_bin"],
        )  # fmt: skip
        trees = xgboost.train(rank_settings(len(features), seed, threads), data, RANK_TREES)
        return Ranker(model, columns, trees)
    with _sklearn_threads(threads):
        estimator = HistGradientBoostingRegressor(**HIST_PARAMETERS, random_state=seed)
        return Ranker(model, columns, estimator.fit(features, label))


def predict(
    ranker: Ranker, features: np.ndarray, names: Sequence[str], threads: int = 2
) -> np.ndarray:
    """Scores of configurations, float64 [rows], larger = slower.

    Raises DataError when a column that the model reads is missing from `names`.
    """
    features = _select(features, names, ranker.columns)
    if isinstance(ranker.estimator, xgboost.Booster):
        ranker.estimator.set_param({"nthread": threads})
        return ranker.estimator.inplace_predict(features).astype(np.float64)
    with _sklearn_threads(threads):
        return ranker.estimator.predict(features)


def rank_settings(rows: int, seed: int, threads: int) -> dict:
    """XGBoost's parameters of `rank_pairwise` for a training set of so many rows."""
    child = CHILD_WEIGHT * min(1.0, rows / ENOUGH)
    return RANK_PARAMETERS | {"min_child_weight": child, "seed": seed, "nthread": threads}


@cache
def _threadpools() -> ThreadpoolController:
    return ThreadpoolController()


def _sklearn_threads(threads: int):
    return _threadpools().limit(limits=threads, user_api="openmp")


def _select(features: np.ndarray, names: Sequence[str], columns: Sequence[str]) -> np.ndarray:
    place = {name: i for i, name in enumerate(names)}
    missing = [name for name in columns if name not in place]
    if missing:
        raise DataError(f"feature columns missing: {', '.join(missing[:5])}")
    if tuple(columns) == tuple(names):
        return np.asarray(features, np.float32)
    return np.asarray(features, np.float32)[:, [place[name] for name in columns]]


def floors_of(collection: str) -> tuple[str, ...]:
    """The untrained floors of a collection: a tile kernel has no nodes that choose layouts."""
    tile = collection.startswith("tile:")
    return tuple(model for model in FLOORS if not (tile and model in LAYOUT_FLOORS))


def floor_score(model: str, file: GraphFile, table: pl.DataFrame, seed: int = 0) -> np.ndarray:
    """Score of an untrained floor for the rows of a feature table, float64 [rows].

    random: a draw from the seed and the graph's name. config_frequency: a configuration that
    occurs more often in its file counts as faster (a search repeats what it liked).
    choice_frequency: the same for the mean log frequency of its nodes' choices. byte_count: bytes
    of the slots whose layout is not row-major; on tile collections the number of tiles.
    loop_bytes: bytes that the program's loops write, and those that they read one element of a
    cache line at a time (`utils.loops`).
    """
    if model == "random":
        return np.random.default_rng([seed, zlib.crc32(file.id.encode())]).random(len(table))
    if model == "config_frequency":
        return -table["count"].to_numpy().astype(np.float64)
    columns = FLOOR_COLUMNS[model]
    if model == "byte_count" and file.tile:
        columns = (TILE_BYTE_COUNT,)
    for column in columns:
        if column not in table.columns:
            raise DataError(f"{file.path}: its feature table has no column {column}")
    sign = -1.0 if model == "choice_frequency" else 1.0
    return sign * table.select(columns).to_numpy().astype(np.float64).sum(1)


def family_folds(files: Sequence[GraphFile], k: int, assignment_seed: int) -> np.ndarray:
    """The fold of each graph, int64 [files]; all graphs of a family share one fold.

    Families are shuffled by `assignment_seed` and given, the largest first, to the fold with the
    fewest graphs. A graph without a family is its own. There are at most as many folds as
    families: with a single family every fold number is 0 and nothing can be cross-validated.
    The order of `files` has no effect on the folds.
    """
    family = [file.family or file.name for file in files]
    sizes = {name: family.count(name) for name in sorted(set(family))}
    shuffled = np.random.default_rng(assignment_seed).permutation(list(sizes))
    folds = np.zeros(min(k, len(sizes)), np.int64)
    fold_of: dict[str, int] = {}
    for name in sorted(shuffled.tolist(), key=sizes.get, reverse=True):  # stable: keeps the draw
        fold_of[name] = int(folds.argmin())
        folds[fold_of[name]] += sizes[name]
    return np.array([fold_of[name] for name in family], np.int64)


def importances(ranker: Ranker) -> dict[str, float]:
    """Share of the total gain of each feature column of an XGBoost model, largest first.

    Columns that no tree splits on are left out. An empty dict for `hist_gbrt`, which keeps no
    gains.
    """
    if not isinstance(ranker.estimator, xgboost.Booster):
        return {}
    gain = ranker.estimator.get_score(importance_type="total_gain")
    named = {ranker.columns[int(key[1:])]: value for key, value in gain.items()}
    total = sum(named.values()) or 1.0
    return {key: named[key] / total for key in sorted(named, key=named.get, reverse=True)}


def save_model(ranker: Ranker, stem: Path, **facts) -> None:
    """Write `stem`.ubj (the trees) and `stem`.json (feature names, feature version, `facts`).

    Raises TypeError for `hist_gbrt`: scikit-learn saves by pickle only, which runs code when
    loaded, so that model is fitted again where it is needed.
    """
    if not isinstance(ranker.estimator, xgboost.Booster):
        raise TypeError(f"{ranker.model} can't be saved without pickle: fit it again instead")
    about = {"model": ranker.model} | facts | {"columns": ranker.columns}
    save_trees(stem, ranker.estimator, FEATURE_VERSION, **about)


def load_model(stem: Path) -> Ranker:
    """Read what `save_model` wrote. Raises DataError for another feature version."""
    trees, about = load_trees(stem, FEATURE_VERSION)
    return Ranker(about["model"], tuple(about["columns"]), trees)
