"""Why boosted trees rank one configuration behind another: of tiles above all.

A tile has no nodes that choose, so its score comes from columns that describe the whole tile
(`utils.tile_features`), by trees. SHAP values divide a score among the columns: what knowing a
column changes in the expected score, averaged over all orders in which columns become known.
XGBoost computes them exactly (TreeSHAP: Lundberg, Erion and Lee, "Consistent Individualized
Feature Attribution for Tree Ensembles", 2018, arXiv:1802.03888).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import xgboost

from utils import ranking
from utils.dataset import DataError, GraphFile
from utils.model_files import is_saved, model_stem
from utils.notebook import Run
from utils.ranking import Ranker
from utils.schema import TILE_COLLECTION

SCHEMA = {
    "adds": pl.Float64, "column": pl.String, "means": pl.String,
    "in_b": pl.Float64, "in_a": pl.Float64,
}  # fmt: skip
SAME = "what is the same in both"
ROUNDING = "rounding of the score to 32 bits"
MODEL = "rank_pairwise"
TOGETHER = 10  # trees whose SHAP values XGBoost adds up

_WORDS = {
    "trans_config_log_frequency": "log of the configuration's share of its file",
    "tile_count": "number of tiles",
    "tile_volume": "elements of a tile",
    "tile_covered": "elements that tiles cover / those of the result",
    "tile_working_set_bytes": "bytes that a tile reads and writes",
    "tile_input_bytes": "bytes that a tile reads",
    "tile_moved_bytes": "bytes that all tiles read and write",
    "tile_moved_ratio": "bytes that all tiles read and write / those of inputs and result",
    "tile_flops": "FLOPs of a tile",
    "tile_flops_per_byte": "FLOPs for each byte read or written",
    "tile_set_share": "bytes that a tile reads and writes / those of inputs and result",
    "tile_largest_input_share": "largest share of an input that a tile reads",
    "tile_kernel_share": "share of the convolution's kernel that is used at once",
    "tile_minor_padding_8": "minor-most bound, rounded up to eights / itself",
    "tile_minor_padding_128": "minor-most bound, rounded up to 128s / itself",
    "tile_minor_over_second": "log2 of the minor-most bound / the second-minor one",
}
_ALONG = {
    "bound": "{} bound",
    "size": "size of the {} dimension",
    "ratio": "share of the {} dimension that a tile spans",
    "tiles": "number of tiles along the {} dimension",
    "covered": "length that tiles cover along the {} dimension / its size",
}
_DIMENSION = {
    "minor": "minor-most", "second": "second-minor", "third": "third-minor",
    "fourth": "fourth-minor",
}  # fmt: skip


def explain_trees(
    ranker: Ranker, features: np.ndarray, names: Sequence[str], a: int, b: int, threads: int = 2
) -> pl.DataFrame:
    """What makes configuration `a` of a graph slower than `b`, the costliest column first.

    features: [configurations, columns] of one graph with the `names` of its columns, as for
    `ranking.predict`. One line for each column that differs and matters; `adds` is the difference
    of its two SHAP values. Columns that are the same in both rows add something too, as a tree
    weighs one column by another: that is one line, SAME. Trees are summed in float64, while
    XGBoost sums a score in float32: the difference, about 1e-6, is the line ROUNDING. So `adds`
    sums to score(a) - score(b) as predicted. Other columns of the table: column (null for SAME
    and ROUNDING), means (the column in words), in_b and in_a (its values, null where the feature
    has none).

    Raises DataError for a model of other trees or without its columns, and IndexError for a
    configuration that is not there.
    """
    if not (0 <= a < len(features) and 0 <= b < len(features)):
        raise IndexError(f"configurations {a} and {b}: there are {len(features)}")
    if not isinstance(ranker.estimator, xgboost.Booster):
        raise DataError(f"{ranker.model}: only trees of XGBoost ({MODEL}) can be explained")
    pair = np.asarray(features)[[a, b]].astype(np.float32)
    score = ranking.predict(ranker, pair, names, threads)
    place = {name: i for i, name in enumerate(names)}
    pair = pair[:, [place[name] for name in ranker.columns]]
    adds = np.subtract(*contributions(ranker.estimator, pair, threads))
    differs = (pair[0] != pair[1]) & ~np.isnan(pair).all(0)
    lines = [
        (adds[i], ranker.columns[i], column_words(ranker.columns[i]), pair[1, i], pair[0, i])
        for i in np.flatnonzero(differs & (adds != 0))
    ]
    left = {SAME: adds[~differs].sum(), ROUNDING: score[0] - score[1] - adds.sum()}
    lines += [(value, None, words, None, None) for words, value in left.items() if value]
    table = pl.DataFrame(lines, SCHEMA, orient="row").with_columns(
        pl.col("in_b", "in_a").fill_nan(None)
    )
    return table.sort("adds", "column", descending=[True, False])


def contributions(trees: xgboost.Booster, values: np.ndarray, threads: int = 2) -> np.ndarray:
    """SHAP values of every column, float64 [rows, columns]; of float32 [rows, columns].

    A few trees at a time: float32, in which XGBoost adds them up, would cost the sixth decimal.
    """
    data = xgboost.DMatrix(values, nthread=threads)
    count = trees.num_boosted_rounds()
    some = (trees[i : min(i + TOGETHER, count)] for i in range(0, count, TOGETHER))
    parts = (few.predict(data, pred_contribs=True).astype(np.float64) for few in some)
    return sum(parts)[:, :-1]  # the last column is the mean score


def column_words(name: str) -> str:
    """What a column of `utils.tile_features` says; another column's name is all there is to say."""
    if name in _WORDS:
        return _WORDS[name]
    if name.startswith("tile_rel_"):
        return column_words(name.replace("_rel", "")) + ", log2 above the mean"
    parts = name.split("_")[1:]
    if len(parts) == 3 and parts[1] == "bounds":
        part, _, entry = parts
        return f"{part} bound {entry}" if entry.isdigit() else f"{entry} of the {part} bounds"
    if len(parts) == 2 and parts[0] in _DIMENSION and parts[1] in _ALONG:
        return _ALONG[parts[1]].format(_DIMENSION[parts[0]])
    return name


def value_words(value: float | None) -> str:
    """A value of a column, short."""
    if value is None:
        return "none"
    return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"


def choose_tile(run: Run, name: str = "") -> tuple[GraphFile, Path] | None:
    """The tile graph to explain and the model that ranks it; None where a run lacks either.

    The one called `name`; else the largest file of the valid split, or of any graph where there
    is none. Raises DataError for a name that is not there.
    """
    files = [file for file in run.files if file.collection == TILE_COLLECTION]
    stem = model_stem(run.out, TILE_COLLECTION, MODEL)
    if not (files and is_saved(stem)):
        return None
    if name:
        files = [file for file in files if file.name == name]
        if not files:
            raise DataError(f"no tile graph {name!r}")
    unseen = [file for file in files if file.split == "valid"]
    return max(unseen or files, key=lambda f: (f.path.stat().st_size, f.name)), stem
