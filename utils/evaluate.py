"""Score predictions per graph, and sum them up as the records of metrics.json.

Predictions are about distinct configurations; a score is about every row of the file as it was
measured, repeats included. Graphs in which nothing can be ranked (a single distinct configuration,
or one runtime for all) are kept in the table with null scores and left out of every mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import polars as pl

from utils import metrics
from utils.dataset import DataError, GraphFile
from utils.files import write_json
from utils.notebook import Run, require, table_path
from utils.progress import progress

STEM = re.compile(r"(valid|family_cv|test)_(\d+)_(\d+)(?:_fold(\d+))?")
KEYS = ("collection", "model", "protocol", "fold_assignment", "seed")
GRAPH_SCORES = ("tau", "slowdown1", "slowdown5", "opa", "tile_score")
RECORD = (
    *KEYS, "graphs", "rows", "tau", "tau_sd_graphs", "slowdown1", "slowdown5", "opa",
    "tile_score", "ceiling", "fit_s", "predict_s", "configs_per_s", "peak_mb",
)  # fmt: skip
SCHEMA = {
    "collection": pl.String, "model": pl.String, "protocol": pl.String,
    "fold_assignment": pl.Int64, "seed": pl.Int64, "split": pl.String, "name": pl.String,
    "rows": pl.Int64, "rankable": pl.Boolean, **dict.fromkeys(GRAPH_SCORES, pl.Float64),
}  # fmt: skip
COSTS_SCHEMA = {
    "collection": pl.String, "model": pl.String, "protocol": pl.String,
    "fold_assignment": pl.Int64, "seed": pl.Int64, "rows": pl.Int64, "fit_s": pl.Float64,
    "predict_s": pl.Float64, "peak_mb": pl.Float64,
}  # fmt: skip


def score_graph(target: np.ndarray, score: np.ndarray, tile: bool) -> dict[str, float | None]:
    """All scores of one graph. target, score: float64 [rows of the file]; smaller = faster.

    tau: Kendall's tau-b; slowdown1, slowdown5: fastest of the best 1 or 5 over the fastest of all,
    minus 1; opa: share of pairs in the right order; tile_score: 1 - slowdown5, null for layout.
    """
    return {
        "tau": metrics.kendall_tau(target, score),
        "slowdown1": metrics.slowdown(target, score, 1),
        "slowdown5": metrics.slowdown(target, score, 5),
        "opa": metrics.pair_accuracy(target, score),
        "tile_score": metrics.tile_score(target, score) if tile else None,
    }


def prediction_files(run: Run, protocols: Iterable[str]) -> list[tuple[dict, Path]]:
    """Every table of predictions of the run's collections, with what its path says of it.

    Any model that left files there is found: nothing here knows the models' names.
    """
    found = []
    for collection in run.collections:
        base = Path(run.out) / "tables" / "predictions" / collection.replace(":", "_")
        for path in sorted(base.glob("*/*.parquet")):
            match = STEM.fullmatch(path.stem)
            if match is None or match[1] not in protocols:
                continue
            keys = (collection, path.parent.name.replace("__", "/"), match[1])
            assignment = int(match[2]) if match[1] == "family_cv" else None
            found.append((dict(zip(KEYS, (*keys, assignment, int(match[3])))), path))
    return found


def file_rows(run: Run, file: GraphFile) -> tuple[np.ndarray, np.ndarray]:
    """Of every row of a graph's file: its distinct configuration int32, its target float64."""
    table = pl.read_parquet(require(table_path(run, "rows", file), "04"))
    target = table["target"].cast(pl.Float64).fill_null(np.nan)
    return table["distinct"].to_numpy(), target.to_numpy()


def graph_scores(
    run: Run, protocols: Iterable[str], solution: Mapping[str, np.ndarray] | None = None
) -> pl.DataFrame:
    """One row a (model, protocol, fold assignment, seed, graph) with the columns of SCHEMA.

    solution: targets of unlabelled graphs by submission ID, float64 [rows]. Graphs without labels
    and graphs that are no part of the run are skipped.
    Raises DataError when predictions don't fit their graph, or score it twice.
    """
    solution = solution or {}
    files = {(f.collection, f.split, f.name): f for f in run.files}
    cache: dict[GraphFile, tuple[np.ndarray, np.ndarray]] = {}
    rows, seen = [], set()
    for keys, path in progress(prediction_files(run, protocols), desc="score", unit="file"):
        table = pl.read_parquet(path)
        for (split, name), part in table.group_by(["split", "name"], maintain_order=True):
            file = files.get((keys["collection"], split, name))
            if file is None:
                continue
            if file not in cache:
                distinct, target = file_rows(run, file)
                cache[file] = distinct, np.asarray(solution.get(file.id, target), np.float64)
            distinct, target = cache[file]
            if np.isnan(target).any():
                continue
            score = expand(part, distinct, path)
            if len(score) != len(target):
                raise DataError(f"{file.id}: {len(target)} runtimes for {len(score)} rows")
            if (key := (*keys.values(), split, name)) in seen:
                raise DataError(f"{path}: scores {file.id} a second time")
            seen.add(key)
            rankable = distinct.max() > 0 and target.min() < target.max()
            result = score_graph(target, score, file.tile) if rankable else {}
            about = {"split": split, "name": name, "rows": len(target), "rankable": rankable}
            rows.append(keys | about | {key: result.get(key) for key in GRAPH_SCORES})
    return pl.DataFrame(rows, schema=SCHEMA)


def expand(part: pl.DataFrame, distinct: np.ndarray, path: Path | str = "") -> np.ndarray:
    """Scores of distinct configurations (columns config, score) -> float64 [rows of the file].

    Raises DataError when a configuration has no score, or one that isn't finite.
    """
    score = np.full(int(distinct.max()) + 1, np.nan)
    if len(part) != len(score) or part["config"].max() != len(score) - 1:
        raise DataError(f"{path}: {len(part)} scores for {len(score)} configurations")
    score[part["config"].to_numpy()] = part["score"].to_numpy()
    if not np.isfinite(score).all():
        raise DataError(f"{path}: a configuration without a finite score")
    return score[distinct]


def with_ceiling(scores: pl.DataFrame, ceilings: pl.DataFrame) -> pl.DataFrame:
    """Add each graph's noise ceiling. ceilings: columns collection, split, name, ceiling."""
    keys = ["collection", "split", "name"]
    return scores.join(ceilings.select(*keys, "ceiling"), on=keys, how="left")


def fit_costs(run: Run, protocols: Iterable[str]) -> pl.DataFrame:
    """What each file of predictions cost: KEYS, rows, fit_s, predict_s, peak_mb."""
    rows = []
    for keys, path in prediction_files(run, protocols):
        about = path.with_suffix(".json")
        costs = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
        rows.append(keys | {c: costs.get(c) for c in ("rows", "fit_s", "predict_s", "peak_mb")})
    return pl.DataFrame(rows, schema=COSTS_SCHEMA)


def records(scores: pl.DataFrame, costs: pl.DataFrame) -> list[dict]:
    """The records of metrics.json: one for each collection, model, protocol, assignment and seed.

    Scores are means over the rankable graphs; tau_sd_graphs is the standard deviation of tau over
    them (null for one graph); ceiling is the mean over those that have one, of tau for layout and
    of the tile score for tile. Seconds are summed over folds, peak_mb is the largest.
    scores: from `graph_scores`, with a ceiling column (see `with_ceiling`).
    """
    means = (
        scores.filter("rankable")
        .group_by(KEYS)
        .agg(
            pl.len().alias("graphs"), pl.col("rows").sum(), pl.col("tau").std().alias("sd"),
            pl.col(*GRAPH_SCORES, "ceiling").mean(),
        )
    )  # fmt: skip
    spent = costs.group_by(KEYS).agg(
        _sum("fit_s"), _sum("predict_s"), pl.col("peak_mb").max(),
        pl.col("rows").sum().alias("predicted"),
    )  # fmt: skip
    table = (
        means.rename({"sd": "tau_sd_graphs"})
        .join(spent, on=KEYS, how="left", nulls_equal=True)
        .with_columns((pl.col("predicted") / pl.col("predict_s")).alias("configs_per_s"))
        .sort(KEYS, nulls_last=True)
    )
    return table.select(RECORD).to_dicts()


def _sum(column: str) -> pl.Expr:
    """Sum of a column, null (not 0) where it is null throughout."""
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum()).alias(column)


def read_metrics(path: Path | str) -> list[dict]:
    """The records of metrics.json; none if there is no such file yet."""
    path = Path(path)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def update_metrics(
    path: Path | str, new: list[dict], protocols: Iterable[str], collections: Iterable[str]
) -> list[dict]:
    """Put new records in the place of those of these protocols and collections; returns all."""
    protocols, collections = set(protocols), set(collections)
    kept = [
        record
        for record in read_metrics(path)
        if not (record["protocol"] in protocols and record["collection"] in collections)
    ]
    merged = sorted(kept + new, key=lambda r: tuple((r[k] is None, r[k]) for k in KEYS))
    write_json(path, merged)
    return merged


def paired_differences(
    scores: pl.DataFrame, files: Iterable[GraphFile], base: str = "rank_pairwise"
) -> pl.DataFrame:
    """How much better each other model is than `base` on the same graphs.

    Per collection and model: difference (mean over families of the mean over their graphs; tile
    score for tile, tau else), error (its standard error over families, null for one), families.
    Graphs are compared after averaging over seeds and fold assignments that both models have.
    """
    family = {(f.collection, f.split, f.name): f.family or f.name for f in files}
    graph = ["collection", "split", "name"]
    once = ["protocol", "fold_assignment", "seed"]
    table = scores.filter("rankable").select(
        *graph, *once, "model", pl.coalesce("tile_score", "tau").alias("score")
    )
    both = table.filter(pl.col("model") != base).join(
        table.filter(pl.col("model") == base), on=[*graph, *once], suffix="_base", nulls_equal=True
    )
    keys = both.select(graph).rows()
    return (
        both.with_columns(
            (pl.col("score") - pl.col("score_base")).alias("difference"),
            pl.Series("family", [family.get(key, key[2]) for key in keys], pl.String),
        )
        .group_by("collection", "model", "family", *graph[1:])
        .agg(pl.col("difference").mean())
        .group_by("collection", "model", "family")
        .agg(pl.col("difference").mean())
        .group_by("collection", "model")
        .agg(
            pl.col("difference").mean(),
            (pl.col("difference").std() / pl.len().sqrt()).alias("error"),
            pl.len().alias("families"),
        )
        .sort("collection", "model")
    )


def why_low(
    scores: pl.DataFrame, graphs: pl.DataFrame, worst: int = 10, trained: frozenset = frozenset()
) -> pl.DataFrame:
    """The graphs furthest below their ceiling, with what may be the reason.

    scores: of one model, with ceiling; graphs: tables/graphs.parquet; trained: (collection,
    family) pairs that the model has seen (empty: not said). The distance is that of the tile
    score for tile, of tau else, and counts from 1 where there is no ceiling.
    """
    score = pl.coalesce("tile_score", "tau")
    keys = ["collection", "split", "name"]
    table = (
        scores.filter("rankable")
        .group_by(keys)
        .agg(score.mean().alias("score"), pl.col("ceiling").mean())
        .with_columns((pl.col("ceiling").fill_null(1.0) - pl.col("score")).alias("below"))
        .join(graphs.select(*keys, "family", "distinct", "config_nodes", "spread"), on=keys)
        .sort("below", descending=True)
        .head(worst)
    )
    why = [_reasons(row, trained) for row in table.iter_rows(named=True)]
    return table.with_columns(pl.Series("why", why, pl.String))


def _reasons(row: dict, trained: frozenset) -> str:
    """What sets a graph apart, in words."""
    reasons = []
    if row["ceiling"] is not None and row["ceiling"] < 0.6:
        reasons.append("mostly noise")
    if row["spread"] is not None and row["spread"] < 1.1:
        reasons.append(f"slowest only {row['spread']:.2f}x the fastest")
    if row["distinct"] < 20:
        reasons.append(f"only {row['distinct']} configurations")
    if row["config_nodes"] and row["config_nodes"] < 3:
        reasons.append("few configurable nodes")
    if trained and (row["collection"], row["family"]) not in trained:
        reasons.append("a family that was not trained on")
    return ", ".join(reasons) or "no plain reason"
