"""Train the pairwise ranker from feature tables on disk, with one graph in memory at a time.

XGBoost asks for the tables one after another and keeps one byte a number (64 bins); beyond the
memory that is allowed it keeps even these on disk. Where a column's bins lie depends a little on
how the data comes, so the trees are not those of the fit in memory, only as good.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import xgboost

from utils import ranking
from utils.dataset import DataError
from utils.ranking import Ranker

# One graph: features float32 [rows, columns] and target float64 [rows], larger = slower.
Part = Callable[[], tuple[np.ndarray, np.ndarray]]
COPIES = 3  # of the features, float32, when a fit has them all in memory


def memory_mb(rows: int, columns: int) -> float:
    """About what `ranking.fit` needs for its features, in MB."""
    return rows * columns * 4 * COPIES / 2**20


class _Tables(xgboost.DataIter):
    """Hands XGBoost the graphs one after another."""

    def __init__(self, parts: Sequence[Part], columns: np.ndarray, cache: str | None) -> None:
        self.parts, self.columns, self.at = parts, columns, 0
        super().__init__(cache_prefix=cache)

    def next(self, input_data: Callable) -> bool:
        if self.at == len(self.parts):
            return False
        features, label, graph = training_data(self.parts[self.at], self.at, self.columns)
        input_data(data=features, label=label, qid=graph)
        self.at += 1
        return True

    def reset(self) -> None:
        self.at = 0


def training_data(
    part: Part, graph: int, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of one graph: features float32 [rows, columns], what to learn float64 [rows], its number."""
    features, target = part()
    number = np.full(len(target), graph)
    label = ranking.within_graph_target("rank_pairwise", target, number)
    return np.ascontiguousarray(features[:, columns]), label, number


def column_ranges(
    model: str, parts: Sequence[Part], width: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Smallest and largest value of each of `width` columns, float [width], and how many rows.

    Raises DataError for rows without a runtime.
    """
    low, high, rows = np.full(width, np.inf), np.full(width, -np.inf), 0
    for part in parts:
        features, target = part()
        if not np.isfinite(target).all():
            raise DataError(f"{model}: training rows without a runtime")
        rows += len(features)
        low = np.fmin(low, np.fmin.reduce(features, initial=np.inf))
        high = np.fmax(high, np.fmax.reduce(features, initial=-np.inf))
    return low, high, rows


def varying_columns(
    model: str, names: Sequence[str], low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Index of the columns that a model reads and that vary. Raises DataError without any."""
    keep = (low < high) & np.isin(names, ranking.columns_of(model, names))
    if not keep.any():
        raise DataError(f"{model}: no rows, or no feature column that varies, to train on")
    return np.flatnonzero(keep)


def fit(
    model: str,
    parts: Sequence[Part],
    names: Sequence[str],
    seed: int = 0,
    threads: int = 2,
    disk: Path | None = None,
) -> Ranker:
    """Fit `rank_pairwise`, or an ablation of it, on the rows of all graphs together.

    `parts` are called several times and have to give the same each time; `names` are those of
    their columns. With `disk`, a folder, the binned rows are kept in files there during the fit.
    Raises DataError when there is nothing to learn from.
    """
    low, high, rows = column_ranges(model, parts, len(names))
    columns = varying_columns(model, names, low, high)
    settings = ranking.rank_settings(rows, seed, threads)
    options = {"max_bin": ranking.RANK_PARAMETERS["max_bin"], "nthread": threads}
    if disk is None:
        data = xgboost.QuantileDMatrix(_Tables(parts, columns, None), **options)
        booster = xgboost.train(settings, data, ranking.RANK_TREES)
    else:
        disk.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=disk) as folder:
            tables = _Tables(parts, columns, str(Path(folder) / "rows"))
            data = xgboost.ExtMemQuantileDMatrix(tables, **options)
            booster = xgboost.train(settings, data, ranking.RANK_TREES)
            del data, tables  # before the files are gone
    return Ranker(model, tuple(names[i] for i in columns), booster)
