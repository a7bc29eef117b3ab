"""Which fits a study of the rankers consists of, and running them.

Every fit leaves its predictions and its costs as files, so that a study that was stopped goes on
where it was. Three protocols: `valid` (trained on train, scored on valid), `test` (the same model
on test) and `family_cv` (trained on all program families but those of one fold, scored on these,
over all labelled graphs: what a new program would see).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from utils import ranking
from utils.cost import Cost, measured
from utils.dataset import GraphFile
from utils.files import write_json, write_parquet
from utils.made_of import mark
from utils.model_files import is_saved, model_stem
from utils.notebook import Run, require, table_path
from utils.progress import progress
from utils.training import MEMORY_MB, features_of, fit_ranker, read_features

_MADE_BY = "dask_train metrics ranking sampling study train_stream training"


@dataclass(frozen=True)
class Fit:
    """One model on one set of graphs. `train` is empty for an untrained floor."""

    collection: str
    model: str
    seed: int
    fold_assignment: int
    fold: int | None  # None outside cross-validation
    train: tuple[GraphFile, ...]
    scored: dict[str, tuple[GraphFile, ...]]  # protocol -> graphs


@dataclass(frozen=True)
class Plan:
    """Fits, and one line on everything that these files don't allow."""

    fits: list[Fit]
    notes: list[str]


def trainable(run: Run, file: GraphFile) -> bool:
    """Whether a graph is labelled and has two configurations of different runtime."""
    path = require(table_path(run, "features", file), "04")
    target = pl.read_parquet(path, columns=["target"])["target"]
    return target.null_count() == 0 and target.n_unique() > 1


def plan(
    run: Run,
    seeds: Sequence[int] = (0,),
    assignments: Sequence[int] = (0,),
    folds: int = 5,
    only_fold: int | None = 0,
    ablations: bool = False,
    trained: Sequence[str] | None = None,
) -> Plan:
    """The fits of all collections of a run.

    `trained`: only these models; None: the floors, `ranking.TRAINED` and, if asked for, ablations.
    `only_fold` limits cross-validation to one fold (None: all). Floors without a random draw are
    scored once, not once a seed; floors and ablations take the first of `assignments` alone.
    """
    fits: list[Fit] = []
    notes: list[str] = []
    for collection in run.collections:
        files = sorted((f for f in run.files if f.collection == collection), key=lambda f: f.id)
        labelled = [f for f in files if f.split != "test" and trainable(run, f)]
        by_split = {s: tuple(f for f in labelled if f.split == s) for s in ("train", "valid")}
        # A collection with labelled graphs in valid only can still be learned, but not checked.
        train = by_split["train"] or by_split["valid"]
        scored = {
            "valid": tuple(f for f in files if f.split == "valid") if by_split["valid"] else (),
            "test": tuple(f for f in files if f.split == "test"),
        }
        notes += _notes(collection, by_split)
        models = [*ranking.floors_of(collection), *(ranking.TRAINED if train else ())]
        if ablations and train:
            models += ranking.ablations_of(features_of(read_features(run, train[0]))[1])
        fold_of = {a: ranking.family_folds(labelled, folds, a) for a in assignments}
        crossed = bool(labelled) and len(set(fold_of[assignments[0]])) > 1
        if labelled and not crossed:
            notes.append(f"{collection}: a single program family, so no cross-validation")
        if trained is not None:
            models = list(trained) if train else []
        for model in models:
            floor = model in ranking.FLOORS
            for seed in seeds if not floor or model == "random" else seeds[:1]:
                once = dict(scored)
                if not floor and not by_split["train"]:
                    once["valid"] = ()  # it was trained on
                fits.append(Fit(collection, model, seed, 0, None, () if floor else train, once))
                for assignment in assignments[:1] if floor or "/" in model else assignments:
                    parts = sorted(set(fold_of[assignment])) if crossed else []
                    for fold in parts if only_fold is None else parts[only_fold : only_fold + 1]:
                        held = fold_of[assignment] == fold
                        rest = tuple(f for f, out in zip(labelled, held) if not out)
                        own = tuple(f for f, out in zip(labelled, held) if out)
                        learn = () if floor else rest
                        cv = {"family_cv": own}
                        fits.append(Fit(collection, model, seed, assignment, int(fold), learn, cv))
    return Plan([fit for fit in fits if any(fit.scored.values())], notes)


def _notes(collection: str, by_split: dict[str, tuple[GraphFile, ...]]) -> list[str]:
    if not any(by_split.values()):
        return [f"{collection}: no labelled graph to train on, untrained floors only"]
    notes = []
    if not by_split["train"]:
        notes.append(f"{collection}: nothing to train on in train, so trained on valid")
    elif len(by_split["train"]) == 1:
        notes.append(f"{collection}: a single graph to train on, thin evidence")
    if not by_split["valid"]:
        notes.append(f"{collection}: no labelled graph in valid to score on")
    return notes


def prediction_stem(
    out: Path, collection: str, model: str, protocol: str, fold_assignment: int, seed: int,
    fold: int | None = None,
) -> Path:
    """Where predictions lie, without the ending (.parquet, and .json with the costs)."""
    folder = Path(out) / "tables" / "predictions" / collection.replace(":", "_")
    name = f"{protocol}_{fold_assignment}_{seed}" + ("" if fold is None else f"_fold{fold}")
    return folder / model.replace("/", "__") / name


def write_predictions(stem: Path, scores: dict[GraphFile, np.ndarray], **costs) -> None:
    """Write scores of distinct configurations, one array a graph; the costs last.

    costs: fit_s, predict_s, configs_per_s, peak_mb, and what the fit was made of.
    """
    parts = [
        pl.DataFrame({"config": np.arange(len(score), dtype=np.int32), "score": score}).select(
            pl.lit(file.split).alias("split"), pl.lit(file.name).alias("name"), "config", "score"
        )
        for file, score in scores.items()
    ]
    write_parquet(stem.with_name(stem.name + ".parquet"), pl.concat(parts))
    rows = sum(len(score) for score in scores.values())
    write_json(stem.with_name(stem.name + ".json"), costs | {"rows": rows})


@dataclass(frozen=True)
class Due:
    """A fit that has to be run, and where its files go."""

    fit: Fit
    made_of: str
    stems: dict[str, Path]  # protocol -> predictions
    saved: Path | None  # stem of the model, where it is kept


def due(
    run: Run, fits: Iterable[Fit], made_of: Callable[[Fit], str], model: str, save_seed: int
) -> Iterator[Due]:
    """The fits whose files aren't there yet, or were made of something else, with a progress bar.

    The model `model` of `save_seed` that was trained on train is kept.
    """
    for fit in progress(fits, desc="fits", unit="fit"):
        mark_now = made_of(fit)
        stems = {protocol: stem_of(run, fit, protocol) for protocol, of in fit.scored.items() if of}
        keep = fit.model == model and fit.fold is None and fit.seed == save_seed
        saved = model_stem(run.out, fit.collection, model) if keep else None
        there = all(is_done(stem, mark_now) for stem in stems.values())
        if not there or (saved and not is_saved(saved)):
            yield Due(fit, mark_now, stems, saved)


def run_fits(
    run: Run,
    fits: Sequence[Fit],
    max_configs: int = 0,
    save_seed: int = 0,
    threads: int = 2,
    memory_mb: int = MEMORY_MB,
) -> int:
    """Run every fit whose files aren't there yet; returns how many were run.

    A fit is run again when its graphs' feature tables, its parameters or the code changed. The
    `rank_pairwise` model of `save_seed` that was trained on train is saved. `memory_mb`: see
    `fit_ranker`.
    """
    done = 0

    def made_of(fit: Fit) -> str:
        files = (*fit.train, *(f for files in fit.scored.values() for f in files))
        tables = [require(table_path(run, "features", file), "04") for file in files]
        return mark(_MADE_BY, fit.model, max_configs, threads, *tables)

    for one in due(run, fits, made_of, "rank_pairwise", save_seed):
        fit, ranker, fit_cost = one.fit, None, None
        if fit.train:
            with measured() as fit_cost:
                ranker = fit_ranker(run, fit, max_configs, threads, memory_mb)

        def score(file: GraphFile, table: pl.DataFrame) -> np.ndarray:
            if ranker is None:
                return ranking.floor_score(fit.model, file, table, fit.seed)
            return ranking.predict(ranker, *features_of(table), threads)

        write_scores(one, fit_cost, partial(read_features, run), score)
        if one.saved:
            graphs = [file.id for file in fit.train]
            facts = {"collection": fit.collection, "seed": fit.seed, "trained_on": graphs}
            ranking.save_model(ranker, one.saved, **facts)
        done += 1
    return done


def write_scores(
    one: Due, fit_cost: Cost | None, read: Callable, score: Callable, **facts
) -> None:
    """Score the graphs of all protocols of a fit by `score(file, read(file))`; write predictions.

    Only the scoring is timed, not the reading; nothing is for an untrained floor (`fit_cost` None).
    """
    for protocol, stem in one.stems.items():
        scores, costs = {}, [fit_cost] if fit_cost else []
        for file in one.fit.scored[protocol]:
            given = read(file)
            with measured() as cost:
                scores[file] = score(file, given)
            costs.append(cost)
        spent = dict.fromkeys(("fit_s", "predict_s", "configs_per_s", "peak_mb"))
        if fit_cost:
            seconds = sum(cost.seconds for cost in costs[1:])
            peaks = [cost.peak_mb for cost in costs if cost.peak_mb is not None]
            spent = {
                "fit_s": fit_cost.seconds, "predict_s": seconds,
                "configs_per_s": sum(map(len, scores.values())) / seconds,
                "peak_mb": max(peaks, default=None),
            }  # fmt: skip
        write_predictions(stem, scores, **spent, **facts, made_of=one.made_of)


def stem_of(run: Run, fit: Fit, protocol: str) -> Path:
    """Where the predictions of a fit lie, see `prediction_stem`."""
    return prediction_stem(
        run.out, fit.collection, fit.model, protocol, fit.fold_assignment, fit.seed, fit.fold
    )


def is_done(stem: Path, made_of: str) -> bool:
    """Are the predictions there, and made of the same?"""
    costs = stem.with_name(stem.name + ".json")
    if not (costs.exists() and stem.with_name(stem.name + ".parquet").exists()):
        return False
    try:
        return json.loads(costs.read_text(encoding="utf-8")).get("made_of") == made_of
    except json.JSONDecodeError:
        return False
