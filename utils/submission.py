"""Choose a model for each collection by its validation score and write the competition's file."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import polars as pl

from utils import metrics
from utils.ceiling import noise_ceiling
from utils.dataset import DataError, GraphFile
from utils.evaluate import expand, file_rows, prediction_files
from utils.executables import read_executables
from utils.files import atomic_path
from utils.notebook import Run
from utils.ranking import FLOORS
from utils.repeatability import measured
from utils.report import score_key

TOP_TILES = 5  # so many indices of a tile kernel are submitted, all indices of a layout graph
FALLBACK = "byte_count"


def candidates(run: Run) -> dict[str, list[str]]:
    """Models with predictions for the test split, by collection.

    Trained models and the byte count. Ablations, models that see how often a choice occurs in its
    file, and the other floors are left out: they can't be used on a new program.
    """
    found: dict[str, list[str]] = {}
    for keys, _ in prediction_files(run, ["test"]):
        model = keys["model"]
        if model == FALLBACK or (model not in FLOORS and "/" not in model):
            models = found.setdefault(keys["collection"], [])
            models += [model] if model not in models else []
    return found


def choose_models(run: Run, records: list[dict]) -> list[dict]:
    """Which model ranks each collection's test graphs: collection, model, score, reason.

    The best on valid (mean over seeds; tile score for tile, tau else); without labelled valid
    graphs the best in cross-validation; with neither, a trained model if there is one, else the
    byte count. Collections without test graphs are left out.
    """
    available = candidates(run)
    chosen = []
    for collection in run.collections:
        if not any(f.collection == collection and f.split == "test" for f in run.files):
            continue
        models = available.get(collection, [])
        if not models:
            raise DataError(f"{collection}: no predictions for test, run notebook 05 first")
        choice = {"collection": collection, "score": None}
        trained = [model for model in models if model != FALLBACK]
        for protocol in ("valid", "family_cv"):
            means = mean_scores(records, collection, protocol)
            means = {model: means[model] for model in sorted(models) if model in means}
            if trained and means:
                best = max(means, key=means.get)
                choice |= {"model": best, "score": means[best], "reason": f"best on {protocol}"}
                break
        else:
            if trained:
                best = "rank_pairwise" if "rank_pairwise" in trained else trained[0]
                reason = "trained, but there are no labelled graphs to check it on"
            else:
                best, reason = FALLBACK, "no labelled training graph: untrained byte count"
            choice |= {"model": best, "reason": reason}
        chosen.append(choice)
    return chosen


def mean_scores(records: list[dict], collection: str, protocol: str) -> dict[str, float]:
    """Score of each model, mean over its records: tile score for tile collections, tau else."""
    key = score_key(collection)
    found: dict[str, list[float]] = {}
    for record in records:
        if (record["collection"], record["protocol"]) == (collection, protocol):
            if record[key] is not None:
                found.setdefault(record["model"], []).append(record[key])
    return {model: float(np.mean(values)) for model, values in found.items()}


def submission_rows(run: Run, chosen: list[dict]) -> list[tuple[str, str]]:
    """(ID, indices joined by ';', fastest first) of every test graph, in order of the files.

    Of several seeds the predictions of the lowest are taken. Raises DataError, naming the file,
    for a test graph without predictions.
    """
    model_of = {choice["collection"]: choice["model"] for choice in chosen}
    predictions: dict[str, tuple[Path, pl.DataFrame]] = {}
    for keys, path in sorted(prediction_files(run, ["test"]), key=lambda item: item[0]["seed"]):
        collection = keys["collection"]
        if model_of.get(collection) == keys["model"] and collection not in predictions:
            predictions[collection] = path, pl.read_parquet(path)
    rows = []
    for file in (f for f in run.files if f.split == "test"):
        path, table = predictions[file.collection]
        part = table.filter((pl.col("split") == "test") & (pl.col("name") == file.name))
        if part.is_empty():
            raise DataError(f"{file.path}: no predictions in {path}")
        distinct, _ = file_rows(run, file)
        best = metrics.ranking(expand(part, distinct, path))
        rows.append((file.id, ";".join(map(str, best[: TOP_TILES if file.tile else None]))))
    return rows


def write_submission(path: Path, rows: list[tuple[str, str]]) -> None:
    """Write submission.csv: header ``ID,TopConfigs``, one row a test graph."""
    with atomic_path(path) as temporary, open(temporary, "w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("ID", "TopConfigs"))
        writer.writerows(rows)


def read_solution(data: Path, files: list[GraphFile]) -> dict[str, np.ndarray]:
    """Targets of the test graphs by ID, float64 [rows], from solution.npz; {} without the file.

    Layout: the runtime. Tile: the runtime over ``<ID>/normalizer`` where the solution has one.
    Raises DataError for a test graph that the solution lacks.
    """
    path = Path(data) / "solution.npz"
    if not path.exists():
        return {}
    targets = {}
    with np.load(path, allow_pickle=False) as solution:
        for file in (f for f in files if f.split == "test"):
            if file.id not in solution:
                raise DataError(f"{path}: no runtimes of {file.id}")
            target = solution[file.id].astype(np.float64)
            if file.tile and f"{file.id}/normalizer" in solution:
                target = target / solution[f"{file.id}/normalizer"]
            targets[file.id] = target
    return targets


def solution_ceilings(run: Run) -> pl.DataFrame:
    """Noise ceilings of the test graphs: collection, split, name, ceiling.

    The solution holds the repeated measurements as ``<ID>/rounds``, int64 [rows, rounds]; a graph
    without them has no known ceiling (null). No rows without a solution. Notebook 01 says how much
    executables differ.
    """
    keys = {"collection": pl.String, "split": pl.String, "name": pl.String}
    path, rows = Path(run.data) / "solution.npz", []
    if path.exists():
        executables = read_executables(run)
        with np.load(path, allow_pickle=False) as solution:
            for file in (f for f in run.files if f.split == "test"):
                ceiling = None
                if f"{file.id}/rounds" in solution:
                    ceiling = noise_ceiling(measured(file, solution), executables[file.collection])
                rows.append((file.collection, file.split, file.name, ceiling))
    return pl.DataFrame(rows, keys | {"ceiling": pl.Float64}, orient="row")
