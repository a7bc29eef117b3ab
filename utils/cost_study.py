"""Cost tables in the study of the rankers: their variants, their fits, and the choice of gamma.

Predictions lie beside those of the other models and in the same shape (`utils.study`), so that
notebook 08 scores them with the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from utils import cost_tables, ranking, study, training
from utils.cost import measured
from utils.cost_graphs import Graphs, Prepared
from utils.cost_rows import KINDS, CostRows, terms, without
from utils.cost_tables import GAMMAS, LINEAR, LOG, CostTables
from utils.dataset import GraphFile
from utils.files import write_json
from utils.made_of import mark
from utils.metrics import kendall_tau, within_graph_rank
from utils.notebook import Run, require, table_path
from utils.study import Fit

MODEL = "cost_tables"
FOLDS = 4  # of the cross-validations inside a training set
# What cross-validation by family chose on this repository's CPU programs: bytes as they are.
GAMMA = {
    "layout:xla:default": LINEAR,
    "layout:xla:random": LINEAR,
    "layout:nlp:default": LINEAR,
    "layout:nlp:random": LINEAR,
}


@dataclass(frozen=True)
class Variant:
    """What an ablation changes."""

    kinds: tuple[str, ...] = ()  # kinds of rows that it leaves out
    prefixes: tuple[str, ...] = ("mp_",)  # features that it leaves out
    gamma: float | None = None  # fixed; None: that of the full model
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
FULL = VARIANTS[""]
COMBINED = ("stacked", "mean_rank")  # with the per-configuration ranker
_MADE_BY = (
    "contraction cost_graphs cost_rows cost_study cost_tables joint_sum layout_edges layout_rows "
    "layout_tables metrics node_costs opcode_groups ranking recompute roles sampling tensors "
    "training"
)


def default_gamma(files: Sequence[GraphFile]) -> float:
    """The stored gamma of a collection; of public (TPU) files the logarithm."""
    return GAMMA[files[0].collection] if all(file.ours for file in files) else LOG


def seen_rows(rows: CostRows, variant: Variant = FULL) -> CostRows:
    """The rows as a variant sees them."""
    return without(rows, variant.kinds, variant.prefixes)


def fit_variant(
    variant: Variant, graphs: Sequence[Prepared], gamma: float, seed: int = 0, threads: int = 2
) -> CostTables:
    """Fit one variant; graphs come in order of their IDs whatever the order of `graphs`.

    Families that differ teach best by large differences of runtime. With a single family there
    is nothing to generalize from but ranks: all pairs count alike.
    """
    graphs = sorted(graphs, key=lambda graph: (graph.file.id, graph.file.split))
    return cost_tables.fit(
        [seen_rows(g.rows, variant) for g in graphs],
        [terms(g.graph, g.rows) for g in graphs],
        [g.graph.target for g in graphs],
        gamma=gamma, weighted=_several_families(graphs), seed=seed, threads=threads,
    )  # fmt: skip


def _several_families(graphs: Sequence[Prepared]) -> bool:
    return len({graph.file.family or graph.file.name for graph in graphs}) > 1


def score(variant: Variant, model: CostTables, graph: Prepared, threads: int = 2) -> np.ndarray:
    """Scores of a graph's configurations, float64 [c]."""
    return cost_tables.predict(model, graph.graph, seen_rows(graph.rows, variant), threads)


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


def choose_gamma(graphs: Sequence[Prepared], threads: int = 2) -> dict[float, float]:
    """Mean held-out tau of the full model by each of GAMMAS."""
    means = {}
    for gamma in GAMMAS:
        scores = held_out_scores(FULL, graphs, gamma, 0, threads)
        taus = [kendall_tau(graph.graph.target, scores[graph.file]) for graph in graphs]
        means[gamma] = float(np.mean(taus))
    return means


def run_fits(
    run: Run,
    fits: Sequence[Fit],
    max_configs: int = 0,
    choose: bool = False,
    save_seed: int = 0,
    threads: int = 2,
) -> int:
    """Run every fit of `cost_tables` and its variants whose files aren't there; how many were run.

    choose: gamma by cross-validation on the training families, else the stored one. The model of
    `save_seed` that was trained on train is saved.
    """
    done, graphs = 0, Graphs(run, max_configs)

    def made_of(fit: Fit) -> str:
        read = _files_read(run, fit)
        return mark(_MADE_BY, fit.model, max_configs, choose, threads, *read)

    for due in study.due(run, fits, made_of, MODEL, save_seed):
        fit, variant = due.fit, _variant(due.fit)
        learned = [graphs.sampled(file) for file in _training_files(run, fit)]
        gamma, tried = _gamma(run, fit, graphs, choose, threads)
        with measured() as cost:
            model = fit_variant(variant, learned, gamma, fit.seed, threads)
            scorer = _scorer(run, fit, model, learned, threads)
        study.write_scores(
            due, cost, graphs, lambda _, graph: scorer(graph), gamma=gamma, gamma_taus=tried
        )
        if due.saved:
            facts = {"collection": fit.collection, "seed": fit.seed}
            facts["trained_on"] = [graph.file.id for graph in learned]
            cost_tables.save_model(model, due.saved, **facts)
        done += 1
    return done


def _variant(fit: Fit) -> Variant:
    return VARIANTS.get(fit.model.partition("/")[2], FULL)


def _files_read(run: Run, fit: Fit) -> list[Path]:
    """Every file whose change means that a fit has to be run again."""
    files = [*_training_files(run, fit), *(file for of in fit.scored.values() for file in of)]
    read = [file.path for file in files]
    if fit.model == f"{MODEL}/with_mp":
        read += [p for p in (table_path(run, "node_vectors", f) for f in files) if p.exists()]
    if fit.model == f"{MODEL}/stacked":
        read += [require(table_path(run, "features", file), "04") for file in files]
    if fit.model == f"{MODEL}/mean_rank":
        read += _ranker_predictions(run, fit)
    return read


def _gamma(run: Run, fit: Fit, graphs: Graphs, choose: bool, threads: int):
    """(gamma, mean held-out tau of each gamma that was tried) of a fit.

    Variants take that of the full model, so that they differ from it in one thing only. A choice
    is kept as a file, since it takes more fits than the fit itself.
    """
    if (fixed := _variant(fit).gamma) is not None:
        return fixed, {}
    learned = [graphs.sampled(file) for file in fit.train]
    if not _several_families(learned):
        return LOG, {}
    if not choose:
        return default_gamma(fit.train), {}
    made_of = mark(_MADE_BY, graphs.max_configs, threads, *(file.path for file in fit.train))
    path = Path(run.out) / "tables" / "gammas" / f"{made_of}.json"
    if not path.exists():
        write_json(path, choose_gamma(learned, threads))
    tried = {float(k): tau for k, tau in json.loads(path.read_text(encoding="utf-8")).items()}
    return max(tried, key=tried.get), tried


def _training_files(run: Run, fit: Fit) -> list[GraphFile]:
    """The fit's graphs; pooled: graphs of their families in the other search of the source too."""
    if not _variant(fit).pooled:
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


def _scorer(run: Run, fit: Fit, model: CostTables, learned: Sequence[Prepared], threads: int):
    """What turns a prepared graph into its scores."""
    def alone(graph: Prepared) -> np.ndarray:
        return score(_variant(fit), model, graph, threads)

    if fit.model == f"{MODEL}/stacked":
        held_out = held_out_scores(FULL, learned, model.gamma, fit.seed, threads)
        return _stacked(run, fit, learned, held_out, alone, threads)
    if fit.model == f"{MODEL}/mean_rank":
        return _mean_rank(run, fit, alone)
    return alone


def _stacked(run: Run, fit: Fit, learned, held_out, alone: Callable, threads: int) -> Callable:
    """`rank_pairwise` with one column more: the cost tables' score, held out in training."""
    tables = [
        _with_score(run, g, held_out[g.file] if held_out else alone(g)) for g in learned
    ]
    values, names = zip(*map(training.features_of, tables))
    target = np.concatenate([table["target"].to_numpy() for table in tables])
    graph = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    ranker = ranking.fit(
        "rank_pairwise", np.concatenate(values), names[0], target, graph, fit.seed, threads
    )
    return lambda g: ranking.predict(
        ranker, *training.features_of(_with_score(run, g, alone(g))), threads
    )


def _with_score(run: Run, graph: Prepared, score: np.ndarray) -> pl.DataFrame:
    table = training.read_features(run, graph.file)
    if graph.chosen is not None:
        table = table[graph.chosen]
    return table.with_columns(cost_score=(score - score.mean()) / (score.std() or 1.0))


def _mean_rank(run: Run, fit: Fit, alone: Callable) -> Callable:
    """The mean of a configuration's ranks by cost tables and by `rank_pairwise` (notebook 05)."""
    table = pl.concat([pl.read_parquet(path) for path in _ranker_predictions(run, fit)])
    known = {
        key: part.sort("config")["score"].to_numpy()
        for key, part in table.group_by("split", "name")
    }

    def both(graph: Prepared) -> np.ndarray:
        theirs = known[graph.file.split, graph.file.name]
        return (within_graph_rank(alone(graph)) + within_graph_rank(theirs)) / 2

    return both


def _ranker_predictions(run: Run, fit: Fit) -> list[Path]:
    other = replace(fit, model="rank_pairwise")
    stems = [study.stem_of(run, other, protocol) for protocol, of in fit.scored.items() if of]
    return [require(stem.with_name(stem.name + ".parquet"), "05") for stem in stems]
