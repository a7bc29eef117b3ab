import json
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
import pytest

from utils import cost_graphs, cost_study, cost_tables, ranking, study
from utils.cost_graphs import Graphs, prepare, sample
from utils.cost_rows import terms
from utils.cost_study import COMBINED, FULL, MODEL, VARIANTS
from utils.cost_tables import GAMMAS, LINEAR, LOG
from utils.dataset import read_graph
from utils.feature_tables import feature_tables
from utils.files import write_parquet
from utils.metrics import kendall_tau, within_graph_rank
from utils.notebook import open_run, table_path
from utils.synthetic import write_data

RANDOM, DEFAULT = "layout:nlp:random", "layout:nlp:default"
GRAPHS = {"train": 3, "valid": 2, "test": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two small collections with the tables of notebook 04, statistics and vectors left out."""
    folder = tmp_path_factory.mktemp("cost")
    data = write_data(folder / "data", 3, GRAPHS, 30, 3, collections=(DEFAULT, RANDOM))
    run = open_run(folder, str(data), str(folder / "out"))
    for file in run.files:
        for kind, table in zip(("features", "rows"), feature_tables(read_graph(file))):
            write_parquet(table_path(run, kind, file), table)
    return run


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr(cost_tables, "fit", partial(cost_tables.fit, trees=5))
    monkeypatch.setattr(ranking, "RANK_TREES", 20)


def planned(run, *models, collection=RANDOM):
    fits = study.plan(run, folds=3, trained=models).fits
    return [fit for fit in fits if fit.collection == collection]


def read(run, model, protocol="valid_0_0", collection=RANDOM):
    folder = run.out / "tables" / "predictions" / collection.replace(":", "_")
    return pl.read_parquet(folder / model.replace("/", "__") / f"{protocol}.parquet")


def graphs_of(run, split="train", collection=RANDOM):
    files = [f for f in run.files if (f.collection, f.split) == (collection, split)]
    return [prepare(file) for file in files]


def test_predictions_have_the_shape_of_the_other_models(run):
    fits = planned(run, MODEL)
    assert {fit.model for fit in fits} == {MODEL} and len(fits) == 2
    assert cost_study.run_fits(run, fits, threads=1) == 2
    assert cost_study.run_fits(run, fits, threads=1) == 0  # all is there
    for protocol in ("valid_0_0", "test_0_0", "family_cv_0_0_fold0"):
        table = read(run, MODEL, protocol)
        assert table.columns == ["split", "name", "config", "score"]
        assert np.isfinite(table["score"].to_numpy()).all()
    for (split, name), part in read(run, MODEL).group_by("split", "name"):
        file = next(f for f in run.files if (f.collection, f.name) == (RANDOM, name))
        assert split == "valid" and len(part) == len(study.read_features(run, file))
    folder = run.out / "tables" / "predictions" / "layout_nlp_random" / MODEL
    costs = json.loads((folder / "valid_0_0.json").read_text())
    assert costs["fit_s"] > 0 and costs["configs_per_s"] > 0 and costs["gamma"] == LINEAR


def test_the_saved_model_repeats_the_predictions(run):
    cost_study.run_fits(run, planned(run, MODEL), threads=1)
    model = cost_tables.load_model(run.out / "models" / "layout_nlp_random" / MODEL)
    (graph,) = graphs_of(run, "test")
    score = cost_study.score(FULL, model, graph, threads=1)
    assert (score == read(run, MODEL, "test_0_0")["score"].to_numpy()).all()


def test_the_order_of_files_changes_nothing(run):
    graphs = graphs_of(run)
    models = [
        cost_study.fit_variant(FULL, order, LINEAR, threads=1)
        for order in (graphs, graphs[::-1])
    ]
    a, b = (cost_study.score(FULL, m, graphs[0], threads=1) for m in models)
    assert (a == b).all() and a.std() > 0


@pytest.mark.parametrize("name", [*VARIANTS, *COMBINED])
def test_every_variant_can_be_run(run, name):
    model = f"{MODEL}/{name}" if name else MODEL
    fits = planned(run, model)
    study.run_fits(run, planned(run, "rank_pairwise"), threads=1)
    cost_study.run_fits(run, fits, threads=1)
    table = read(run, model)
    assert table["score"].n_unique() > len(table) / 4


def test_mean_rank_is_the_mean_of_the_two_ranks(run):
    study.run_fits(run, planned(run, "rank_pairwise"), threads=1)
    cost_study.run_fits(run, planned(run, MODEL, f"{MODEL}/mean_rank"), threads=1)
    tables = [read(run, model) for model in (MODEL, "rank_pairwise", f"{MODEL}/mean_rank")]
    name = tables[0]["name"][0]
    a, b, both = (t.filter(pl.col("name") == name)["score"].to_numpy() for t in tables)
    np.testing.assert_allclose(both, (within_graph_rank(a) + within_graph_rank(b)) / 2)


def test_pooled_training_leaves_out_what_is_scored(run):
    for fit in planned(run, f"{MODEL}/both_searches"):
        files = cost_study._training_files(run, fit)
        assert {file.collection for file in files} == {RANDOM, DEFAULT}
        assert all(file.split != "test" for file in files)
        if fit.fold is not None:
            held = {file.family for file in fit.scored["family_cv"]}
            assert not held & {file.family for file in files}


def test_held_out_scores_come_from_models_that_never_saw_the_family(run, monkeypatch):
    graphs = graphs_of(run) + graphs_of(run, "valid")
    trained = []
    original = cost_study.fit_variant

    def spy(variant, graphs, *rest):
        trained.append({graph.file.family for graph in graphs})
        return original(variant, graphs, *rest)

    monkeypatch.setattr(cost_study, "fit_variant", spy)
    scores = cost_study.held_out_scores(FULL, graphs, LINEAR, threads=1)
    assert set(scores) == {graph.file for graph in graphs}
    assert all(families for families in trained)
    for graph in graphs:
        assert any(graph.file.family not in families for families in trained)


def test_gamma_is_tried_on_held_out_families(run):
    graphs = graphs_of(run)
    means = cost_study.choose_gamma(graphs, threads=1)
    assert set(means) == set(GAMMAS)
    scores = cost_study.held_out_scores(FULL, graphs, 0.5, threads=1)
    taus = [kendall_tau(g.graph.target, scores[g.file]) for g in graphs]
    assert means[0.5] == pytest.approx(np.mean(taus))


def test_gamma_is_chosen_once_for_a_training_set_and_all_its_variants(run, monkeypatch):
    calls = []
    tried = {LOG: 0.3, 0.25: 0.4, 0.5: 0.6, LINEAR: 0.5}
    monkeypatch.setattr(cost_study, "choose_gamma", lambda *_: calls.append(1) or tried)
    fits = planned(run, f"{MODEL}/no_out", f"{MODEL}/both_searches", f"{MODEL}/gamma_log")
    cost_study.run_fits(run, fits, choose=True, threads=1)
    assert len(calls) == 2  # trained on train, and without one fold
    folder = run.out / "tables" / "predictions" / "layout_nlp_random"
    for name, gamma in (("no_out", 0.5), ("both_searches", 0.5), ("gamma_log", LOG)):
        costs = json.loads((folder / f"{MODEL}__{name}" / "valid_0_0.json").read_text())
        assert costs["gamma"] == gamma
    costs = json.loads((folder / f"{MODEL}__no_out" / "valid_0_0.json").read_text())
    assert costs["gamma_taus"] == {str(gamma): tau for gamma, tau in tried.items()}


def test_one_family_takes_the_logarithm(run):
    (fit, *_) = planned(run, MODEL)
    alone = replace(fit, train=fit.train[:1])
    for choose in (False, True):
        assert cost_study._gamma(run, alone, Graphs(run), choose, 1) == (LOG, {})
    fixed = replace(alone, model=f"{MODEL}/gamma_1")
    assert cost_study._gamma(run, fixed, Graphs(run), True, 1) == (LINEAR, {})


def test_configurations_of_large_graphs_are_sampled(run, monkeypatch):
    file = next(f for f in run.files if f.split == "train")
    whole = prepare(file)
    part = sample(whole, max_configs=7)
    assert part.graph.configs == len(part.chosen) == 7 and whole.chosen is None
    taken = terms(whole.graph, whole.rows)
    assert (terms(part.graph, part.rows) == taken[part.chosen]).all()
    assert (part.graph.target == whole.graph.target[part.chosen]).all()
    assert sample(whole, whole.graph.configs) is whole
    monkeypatch.setattr(cost_graphs, "TERMS", 3 * len(whole.rows.columns))
    assert sample(whole).graph.configs == 3
    graphs = Graphs(run, max_configs=7)
    assert graphs.sampled(file).graph.configs == 3
    assert graphs(file).graph.configs == whole.graph.configs


def test_sampled_graphs_are_scored_whole_by_all_models(run):
    study.run_fits(run, planned(run, "rank_pairwise"), max_configs=9, threads=1)
    for name in ("", "/stacked", "/mean_rank"):
        fits = planned(run, MODEL + name)
        assert cost_study.run_fits(run, fits, max_configs=9, threads=1) == len(fits)
        whole = read(run, "rank_pairwise").select("split", "name", "config")
        assert read(run, MODEL + name).select("split", "name", "config").equals(whole)


def test_a_combination_is_made_again_when_what_it_reads_was(run):
    fits = planned(run, "rank_pairwise")
    both = planned(run, f"{MODEL}/mean_rank")
    study.run_fits(run, fits, threads=1)
    cost_study.run_fits(run, both, threads=1)
    assert cost_study.run_fits(run, both, threads=1) == 0
    study.run_fits(run, fits, max_configs=8, threads=1)
    assert cost_study.run_fits(run, both, threads=1) == len(both)
