"""Models that a run saved: finding one for a collection, scoring any graph, saying why."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import xgboost

from utils import cost_tables, ranking
from utils.coding import Graph
from utils.cost_rows import cost_rows
from utils.dataset import DataError
from utils.explain import explain
from utils.explain_trees import explain_trees
from utils.feature_tables import feature_tables
from utils.graph_stats import graph_statistics
from utils.message_passing import load_reducer, node_vectors
from utils.model_files import is_saved
from utils.options import ROOT
from utils.schema import COLLECTIONS
from utils.training import features_of
from utils.vector_tables import pool

RUNS = ("outputs/sample", "outputs/sample_run")  # where models are looked for
MODELS = ("cost_tables", "rank_pairwise")  # those that are saved, the preferred one first


@dataclass(frozen=True)
class Model:
    """A saved model, with functions of a graph: its scores, float64 [c], and why two differ."""

    stem: Path
    collection: str  # that it was trained on
    score: Callable[[Graph], np.ndarray]
    explain: Callable[[Graph, int, int], pl.DataFrame]  # why a is slower than b, see utils.explain


def find_model(given: Path | None, collection: str, kinds: Sequence[str] = MODELS) -> Path:
    """Where the model of a collection lies, without the ending. Raises DataError if nowhere.

    given: a model, with or without an ending, or a folder to look in, such as a run's; None: RUNS.
    kinds: which of MODELS will do.
    """
    if given is not None and not given.is_dir():
        stem = stem_of(given)
        if not is_saved(stem):
            raise DataError(f"{given}: no such model, expected {stem}.ubj and {stem}.json")
        return stem
    folders = [ROOT / run for run in RUNS] if given is None else [given]
    slug = collection.replace(":", "_")
    for folder in folders:
        for place in (folder / "models" / slug, folder / slug, folder):
            for name in kinds:
                if is_saved(place / name):
                    return place / name
    where = given or " or ".join(RUNS)
    what = "model" if tuple(kinds) == MODELS else " or ".join(kinds)
    hint = "run ./run_all.sh or name one by --model"
    raise DataError(f"no {what} of {collection} in {where}: {hint}")


def stem_of(path: Path) -> Path:
    """The path of one of a model's two files without its ending."""
    return path.with_suffix("") if path.suffix in (".ubj", ".json") else path


def about(stem: Path) -> dict:
    """What a model says of itself. Raises DataError."""
    path = stem.with_name(stem.name + ".json")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise DataError(f"{path}: damaged, not JSON") from None
    if not isinstance(facts, dict):
        raise DataError(f"{path}: not about a model")
    return facts


@cache
def load_model(stem: Path) -> Model:
    """The model at `stem`. Raises DataError: damaged, unknown, or of another feature version."""
    facts = about(stem)
    kind, collection = str(facts.get("model")), str(facts.get("collection"))
    if collection not in COLLECTIONS:
        raise DataError(f"{stem}.json: does not say of which collection the model is")
    if kind == "cost_tables":
        return Model(stem, collection, *_of_tables(load_tables(stem)))
    if kind.startswith("rank_pairwise"):
        return Model(stem, collection, *_of_ranker(stem, _loaded(stem, ranking.load_model)))
    raise DataError(f"{stem}.json: no model that can rank files (it says {kind})")


def load_tables(stem: Path) -> cost_tables.CostTables:
    """The cost tables at `stem`. Raises DataError: damaged, of another kind or feature version."""
    kind = about(stem).get("model")
    if kind != "cost_tables":
        raise DataError(f"{stem}.json: no cost tables (it says {kind})")
    return _loaded(stem, cost_tables.load_model)


def _loaded(stem: Path, load: Callable):
    """load(stem), with one clear line for a damaged file."""
    try:
        return load(stem)
    except DataError:
        raise
    except (xgboost.core.XGBoostError, KeyError, TypeError) as error:
        what = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(f"{stem}: damaged model ({what})") from None


def _of_tables(tables: cost_tables.CostTables) -> tuple[Callable, Callable]:
    """(score, explain) of `Model`."""
    def score(graph: Graph) -> np.ndarray:
        return cost_tables.predict(tables, graph, cost_rows(graph))

    def explained(graph: Graph, a: int, b: int) -> pl.DataFrame:
        return explain(graph, tables, a, b)

    return score, explained


def _of_ranker(stem: Path, ranker: ranking.Ranker) -> tuple[Callable, Callable]:
    """(score, explain) of `Model`."""
    reducer = None
    if any(name.startswith("mp_") for name in ranker.columns):
        path = stem.parent.parent / "message_passing.npz"
        if not path.exists():
            raise DataError(f"{path}: missing, the model {stem.name} needs its node vectors")
        reducer = load_reducer(path)

    def features(graph: Graph) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
        """Rows of distinct configurations, names of their columns, the row of each one."""
        vectors = None if reducer is None else node_vectors(graph, reducer)
        pooled = None if vectors is None else pool(graph, vectors)
        own = None if graph.codes is None else vectors
        table, index = feature_tables(graph, graph_statistics(graph), own, pooled)
        return *features_of(table), index["distinct"].to_numpy()

    def score(graph: Graph) -> np.ndarray:
        values, names, row = features(graph)
        return ranking.predict(ranker, values, names)[row]

    def explained(graph: Graph, a: int, b: int) -> pl.DataFrame:
        values, names, row = features(graph)
        return explain_trees(ranker, values, names, row[a], row[b])

    return score, explained
