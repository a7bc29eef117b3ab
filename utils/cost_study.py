"""Cost tables in the study of the rankers: their variants, their fits, and the choice of gamma.

Predictions lie beside those of the other models and in the same shape (`utils.study`), so that
notebook 08 scores them with the rest.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from utils import cost_tables, ranking, study
from utils.coding import Graph, deduplicate, read_graph
from utils.cost import Cost, measured
from utils.cost_rows import KINDS, CostRows, cost_rows, terms, without
from utils.cost_tables import GAMMAS, LINEAR, LOG, CostTables
from utils.dataset import GraphFile
from utils.made_of import mark
from utils.metrics import kendall_tau, within_graph_rank
from utils.notebook import Run, require, table_path
from utils.progress import progress
from utils.sampling import sample_by_rank
from utils.study import Fit

MODEL = "cost_tables"
TERMS = 2_000_000  # of one graph that are trained on at most: 8 bytes and 4 each
FOLDS = 4  # of the cross-validations inside a training set


@dataclass(frozen=True)
class Variant:
    """What an ablation changes."""

    kinds: tuple[str, ...] = ()  # kinds of rows that it leaves out
    prefixes: tuple[str, ...] = ("mp_",)  # features that it leaves out
    gamma: float | None = None  # fixed; None: chosen
    pooled: bool = False  # trained on both searches of a source


VARIANTS = {
    "": Variant(),
    "slots_only": Variant(kinds=KINDS[1:]),
    "no_fixed": Variant(kinds=("fixed",)),  # no edges from parameters, constants and others
    "no_out": Variant(kinds=("out",)),
    "no_roles": Variant(prefixes=("mp_", "role_")),
    "with_mp": Variant(prefixes=()),
    "gamma_log": Variant(gamma=LOG),
    "gamma_1": Variant(gamma=LINEAR),
    "both_searches": Variant(pooled=True),
}
COMBINED = ("stacked", "mean_rank")  # with the per-configuration ranker
_MADE_BY = (
    "coding contraction cost_rows cost_study cost_tables layout_edges layout_rows node_costs roles "
    "sampling tensors"
)


@dataclass(frozen=True)
class Prepared:
    """A graph, its distinct configurations only, and what is trained on."""

    file: GraphFile
    graph: Graph
    rows: CostRows
    terms: np.ndarray  # int32 [b, T]: rows of the configurations that are trained on
    target: np.ndarray  # float64 [b]


class Graphs:
    """Prepared graphs by file, read when they are first asked for."""

    def __init__(self, run: Run, max_configs: int = 0) -> None:
        self.run, self.max_configs, self.kept = run, max_configs, {}

    def __call__(self, file: GraphFile) -> Prepared:
        if file not in self.kept:
            vectors = table_path(self.run, "node_vectors", file)
            found = pl.read_parquet(vectors).to_numpy() if vectors.exists() else None
            self.kept[file] = prepare(file, found, self.max_configs)
        return self.kept[file]


def prepare(file: GraphFile, vectors: np.ndarray | None = None, max_configs: int = 0) -> Prepared:
    """Read a graph. At most `max_configs` configurations (0: all), evenly over its ranks, drawn by
    the graph's name, and at most TERMS terms are kept for training."""
    graph, _, _ = deduplicate(read_graph(file))
    rows = cost_rows(graph, vectors)
    limit = max(2, TERMS // max(1, len(rows.columns)))
    limit = min(limit, max_configs or graph.configs, graph.configs)
    draw = np.random.default_rng(zlib.crc32(file.id.encode()))
    chosen = sample_by_rank(graph.target, limit, draw)
    return Prepared(file, graph, rows, terms(graph, rows, chosen), graph.target[chosen])


def default_gamma(files: Sequence[GraphFile]) -> float:
    """What cross-validation chose: bytes as they are on CPU programs, their logarithm on a TPU."""
    return LINEAR if all(file.ours for file in files) else LOG


def fit_variant(
    variant: Variant, graphs: Sequence[Prepared], gamma: float, seed: int = 0, threads: int = 2
) -> CostTables:
    """Fit one variant; graphs come in order of their IDs whatever the order of `graphs`.

    Families that differ teach best by large differences of runtime. With a single family there
    is nothing to generalize from but ranks: all pairs count alike.
    """
    graphs = sorted(graphs, key=lambda graph: (graph.file.id, graph.file.split))
    several = len({graph.file.family or graph.file.name for graph in graphs}) > 1
    return cost_tables.fit(
        [without(g.rows, variant.kinds, variant.prefixes) for g in graphs],
        [g.terms for g in graphs],
        [g.target for g in graphs],
        gamma=gamma, weighted=several, seed=seed, threads=threads,
    )  # fmt: skip


def score(variant: Variant, model: CostTables, graph: Prepared, threads: int = 2) -> np.ndarray:
    """Scores of a graph's distinct configurations, float64 [c]."""
    rows = without(graph.rows, variant.kinds, variant.prefixes)
    return cost_tables.predict(model, graph.graph, rows, threads)


def held_out_scores(
    variant: Variant, graphs: Sequence[Prepared], gamma: float, seed: int = 0, threads: int = 2
) -> dict[GraphFile, np.ndarray]:
    """Scores of every graph by a model that saw none of its family. Empty for one family."""
    fold = ranking.family_folds([graph.file for graph in graphs], FOLDS, seed)
    found = {}
    for k in sorted(set(fold)) if len(set(fold)) > 1 else ():
        rest = [graph for graph, f in zip(graphs, fold) if f != k]
        model = fit_variant(variant, rest, gamma, seed, threads)
        for graph in (g for g, f in zip(graphs, fold) if f == k):
            found[graph.file] = score(variant, model, graph, threads)
    return found


def choose_gamma(
    variant: Variant, graphs: Sequence[Prepared], threads: int = 2
) -> tuple[float, dict[float, float]]:
    """The gamma of the best held-out tau, and the mean tau of each. One family: the logarithm."""
    means = {}
    for gamma in GAMMAS:
        scores = held_out_scores(variant, graphs, gamma, 0, threads)
        taus = [kendall_tau(g.graph.target, scores[g.file]) for g in graphs if g.file in scores]
        if taus:
            means[gamma] = float(np.mean(taus))
    return (max(means, key=means.get) if means else LOG), means


def run_fits(
    run: Run,
    fits: Sequence[Fit],
    max_configs: int = 0,
    choose: bool = False,
    save_seed: int = 0,
    threads: int = 2,
) -> int:
    """Run every fit of `cost_tables` and its variants whose files aren't there; how many were run.

    choose: gamma by cross-validation on the training families, else `default_gamma`. The model of
    `save_seed` that was trained on train is saved.
    """
    done, graphs, gammas = 0, Graphs(run, max_configs), {}
    for number, fit in enumerate(progress(fits, desc="fits", unit="fit")):
        if number and fit.collection.split(":")[1] != fits[number - 1].collection.split(":")[1]:
            graphs.kept.clear()
        name = fit.model.partition("/")[2]
        variant = VARIANTS.get(name, VARIANTS[""])
        train = _training_files(run, fit, variant)
        vectors = [table_path(run, "node_vectors", f) for f in train] if name == "with_mp" else []
        parts = [f.path for f in (*train, *(f for of in fit.scored.values() for f in of))]
        parts += [path for path in vectors if path.exists()]
        made_of = mark(_MADE_BY, fit.model, max_configs, choose, threads, *parts)
        stems = {p: study.stem_of(run, fit, p) for p, files in fit.scored.items() if files}
        keep = fit.model == MODEL and fit.fold is None and fit.seed == save_seed
        place = Path(run.out) / "models" / fit.collection.replace(":", "_") / MODEL
        if all(study.is_done(s, made_of) for s in stems.values()) and not (
            keep and not study.is_saved(place)
        ):
            continue
        learned = [graphs(file) for file in train]
        if (key := (variant, frozenset(train))) not in gammas:
            gammas[key] = _gamma(variant, learned, choose, threads)
        gamma, tried = gammas[key]
        with measured() as cost:
            model, scorer = _train(run, fit, variant, learned, gamma, threads)
        for protocol, stem in stems.items():
            costs = {"fit_s": cost.seconds} | {"gamma": gamma, "gamma_taus": tried}
            found, used = _score_all(scorer, [graphs(f) for f in fit.scored[protocol]])
            rows = sum(map(len, found.values()))
            costs |= {"predict_s": used.seconds, "configs_per_s": rows / used.seconds}
            peaks = [peak for peak in (cost.peak_mb, used.peak_mb) if peak is not None]
            costs["peak_mb"] = max(peaks, default=None)
            study.write_predictions(stem, found, **costs, made_of=made_of)
        if keep:
            facts = {"collection": fit.collection, "seed": fit.seed}
            cost_tables.save_model(model, place, **facts, trained_on=[f.id for f in train])
        done += 1
    return done


def _gamma(variant: Variant, graphs, choose: bool, threads: int):
    families = {graph.file.family or graph.file.name for graph in graphs}
    if variant.gamma is not None:
        return variant.gamma, {}
    if len(families) == 1:
        return LOG, {}
    if choose:
        return choose_gamma(variant, graphs, threads)
    return default_gamma([graph.file for graph in graphs]), {}


def _training_files(run: Run, fit: Fit, variant: Variant) -> list[GraphFile]:
    """The fit's graphs; pooled: graphs of their families in the other search of the source too."""
    if not variant.pooled:
        return list(fit.train)
    source = fit.collection.rpartition(":")[0]
    families = {file.family or file.name for file in fit.train}
    splits = {file.split for file in fit.train}
    scored = {file.name for files in fit.scored.values() for file in files}
    return [*fit.train] + [
        file
        for file in run.files
        if file.collection.rpartition(":")[0] == source and file.collection != fit.collection
        and (file.family or file.name) in families and file.name not in scored
        and file.split in splits and study.trainable(run, file)
    ]


def _train(run: Run, fit: Fit, variant: Variant, graphs, gamma: float, threads: int):
    """(model, function from a prepared graph to its scores)."""
    model = fit_variant(variant, graphs, gamma, fit.seed, threads)

    def alone(graph: Prepared) -> np.ndarray:
        return score(variant, model, graph, threads)

    if fit.model == f"{MODEL}/stacked":
        return model, _stacked(run, fit, variant, graphs, gamma, alone, threads)
    if fit.model == f"{MODEL}/mean_rank":
        return model, _mean_rank(run, fit, alone)
    return model, alone


def _stacked(run: Run, fit: Fit, variant, graphs, gamma, alone, threads) -> Callable:
    """`rank_pairwise` with one column more: the cost tables' score, held out in training."""
    held_out = held_out_scores(variant, graphs, gamma, fit.seed, threads)
    tables = [_with_score(run, g.file, held_out.get(g.file, alone(g))) for g in graphs]
    values, names = zip(*map(study.features_of, tables))
    target = np.concatenate([table["target"].to_numpy() for table in tables])
    graph = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    ranker = ranking.fit(
        "rank_pairwise", np.concatenate(values), names[0], target, graph, fit.seed, threads
    )
    return lambda g: ranking.predict(
        ranker, *study.features_of(_with_score(run, g.file, alone(g))), threads
    )


def _with_score(run: Run, file: GraphFile, score: np.ndarray) -> pl.DataFrame:
    table = study.read_features(run, file)
    spread = score.std()
    return table.with_columns(cost_score=(score - score.mean()) / (spread if spread else 1.0))


def _mean_rank(run: Run, fit: Fit, alone: Callable) -> Callable:
    """The mean of a configuration's ranks by cost tables and by `rank_pairwise` (notebook 05)."""
    other = replace(fit, model="rank_pairwise")
    stems = [study.stem_of(run, other, protocol) for protocol, of in fit.scored.items() if of]
    paths = [require(stem.with_name(stem.name + ".parquet"), "05") for stem in stems]
    table = pl.concat([pl.read_parquet(path) for path in paths])
    known = {
        key: part.sort("config")["score"].to_numpy()
        for key, part in table.group_by("split", "name")
    }

    def both(graph: Prepared) -> np.ndarray:
        theirs = known[graph.file.split, graph.file.name]
        return (within_graph_rank(alone(graph)) + within_graph_rank(theirs)) / 2

    return both


def _score_all(scorer: Callable, graphs) -> tuple[dict[GraphFile, np.ndarray], Cost]:
    with measured() as cost:
        found = {graph.file: scorer(graph) for graph in graphs}
    return found, cost
