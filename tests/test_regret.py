from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
import pytest

from utils import cost_tables, regret, study, synthetic
from utils.coding import deduplicate, read_graph
from utils.cost_rows import cost_rows, terms
from utils.dataset import index
from utils.files import save_npz
from utils.notebook import open_run
from utils.options import ROOT
from utils.synthetic import layout_graph as generate

TARGET = np.array([5.0, 4.0, 8.0, 2.0, 10.0])


def test_the_top_of_a_ranking():
    score = np.array([0.0, 1.0, 1.0, 2.0, 3.0])
    assert regret.top_regret(TARGET, score, (1, 2, 3, 4, 9)).tolist() == [1.5, 1.0, 1.0, 0.0, 0.0]
    assert regret.top_regret(TARGET, TARGET, (1,)).tolist() == [0.0]


def test_random_is_the_mean_over_all_draws():
    for k in (1, 2, 3, 5):
        every = [min(drawn) / 2 - 1 for drawn in combinations(TARGET, k)]
        assert regret.random_regret(TARGET, (k,)) == pytest.approx(np.mean(every))
    assert regret.random_regret(TARGET, (99,)) == pytest.approx(0)
    many = np.arange(1.0, 200.0)
    assert (np.diff(regret.random_regret(many, range(1, 60))) < 0).all()


def test_a_climb_goes_to_neighbours_of_the_best():
    codes = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 2, 2]])
    target = np.array([9.0, 8.0, 6.0, 3.0, 2.0])
    path = regret.climb_regret(target, codes, 0, (1, 2, 3, 4, 5), np.random.default_rng(0))
    np.testing.assert_allclose(path, [3.5, 3.0, 2.0, 0.5, 0.0])


@pytest.fixture
def run(tmp_path):
    """Three generated programs and the predictions of a held-out model, half right."""
    for seed in range(3):
        arrays, _ = generate(seed, "nlp", "random", layers=4, configs=60)
        save_npz(tmp_path / f"data/layout/nlp/random/train/mlp{seed}.a.npz", **arrays)
    run = open_run(tmp_path, str(tmp_path / "data"), "out")
    rng = np.random.default_rng(0)
    for fold, part in enumerate((run.files[:2], run.files[2:])):
        graphs = {f: deduplicate(read_graph(f))[0] for f in part}
        scores = {f: g.target * rng.uniform(1, 1.2, g.configs) for f, g in graphs.items()}
        stem = study.prediction_stem(
            run.out, "layout:nlp:random", "cost_tables", "family_cv", 0, 0, fold
        )
        study.write_predictions(stem, scores)
    return run


def test_curves_of_every_held_out_graph_once(run):
    table = regret.curves(run, ks=(1, 5, 20, 500), climbs=3)
    assert set(table["name"]) == {"mlp0.a", "mlp1.a", "mlp2.a"} and set(table["k"]) == {1, 5, 20}
    per = table.group_by("strategy").agg(pl.len(), pl.col("regret").min())
    assert set(per.rows()) >= {(regret.MODEL, 9, 0.0)} and len(per) >= 2
    graph, _, _ = deduplicate(read_graph(run.files[0]))
    random = table.filter((pl.col("name") == "mlp0.a") & (pl.col("strategy") == regret.RANDOM))
    np.testing.assert_allclose(
        random.sort("k")["regret"], regret.random_regret(graph.target, (1, 5, 20))
    )
    assert table.equals(regret.curves(run, ks=(1, 5, 20, 500), climbs=3))
    assert len(regret.curves(run, "other")) == 0


def made_up(model, random):
    ks = (1, 5, 20, 50)
    lines = [
        ("c", "valid", f"g{i}", "f", 60, strategy, k, value + i / 100)
        for strategy, values in ((regret.MODEL, model), (regret.RANDOM, random))
        for k, value in zip(ks, values) for i in range(3)
    ]
    return pl.DataFrame(lines, regret.SCHEMA, orient="row")


def test_summary_and_sentences():
    table = made_up((0.2, 0.05, 0.02, 0.0), (0.5, 0.3, 0.05, 0.01))
    five = regret.summary(table).filter((pl.col("k") == 5) & (pl.col("strategy") == regret.MODEL))
    assert five.row(0)[2:] == pytest.approx((3, 0.06, 0.055, 0.065))
    assert regret.needed(table, regret.RANDOM, 0.06 + 1e-9) == 20
    said = regret.sentences(table)
    assert said[0] == "3 graphs: the 5 best of the model have a median regret of 6.0%"
    assert said[1] == "random needs 20 measurements for that, 4.0 times as many"
    slow = made_up((0.2, 0.0, 0.0, 0.0), (0.5, 0.3, 0.2, 0.1))
    assert "random does not get there with 50 measurements" in regret.sentences(slow)
    assert regret.sentences(table.clear())[0].startswith("no labelled graph")


def test_the_picture_has_a_line_a_strategy():
    table = made_up((0.2, 0.05, 0.02, 0.0), (0.5, 0.3, 0.05, 0.01))
    (axes,) = regret.plot_curves(table, "A title").axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [regret.MODEL, regret.RANDOM]
    assert axes.lines[0].get_ydata() == pytest.approx([21, 6, 3, 1])
    plt.close("all")


def test_saved_models_are_replayed_on_families_that_they_have_not_seen(tmp_path, capsys):
    only = ("layout:nlp:random",)
    data = synthetic.write_data(tmp_path / "data", 0, {"train": 3, "valid": 1}, 60, 3,
                                collections=only)
    seen, *others = [file for file in index(data) if file.split == "train"]
    graph, _, _ = deduplicate(read_graph(seen))
    rows = cost_rows(graph)
    model = cost_tables.fit([rows], [terms(graph, rows)], [graph.target], trees=5)
    stem = tmp_path / "run/models/layout_nlp_random/cost_tables"
    cost_tables.save_model(model, stem, collection=only[0], trained_on=[seen.id])
    fresh = [file for file in index(data) if file.family != seen.family]
    table = regret.replay(index(data), tmp_path / "run", ks=(1, 5), climbs=2)
    assert set(table["name"]) == {file.name for file in fresh} and len(fresh) == 3
    for file in fresh:
        graph, _, _ = deduplicate(read_graph(file))
        expected = regret.top_regret(
            graph.target, cost_tables.predict(model, graph, cost_rows(graph)), (1, 5))
        own = table.filter((pl.col("name") == file.name) & (pl.col("strategy") == regret.MODEL))
        assert own.sort("k")["regret"].to_list() == pytest.approx(expected.tolist())
    assert regret.main([str(data), "--model", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].split() == ["k", "byte", "count", "hill", "climbing", "model", "random"]
    assert out[-1].startswith("3 graphs: the 5 best of the model") or "3 graphs" in "".join(out)
    assert regret.main([str(data), "--model", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: no cost_tables of layout:nlp:random in ")


def test_on_unseen_programs_five_measurements_do_what_random_draws_need_many_for():
    """What README says of data/unseen and the committed models."""
    table = regret.replay(index(ROOT / "data" / "unseen"), ROOT / "outputs" / "sample_run")
    assert table["name"].n_unique() == 7 and set(table["configs"]) == {200}
    few = regret.summary(table).filter((pl.col("strategy") == regret.MODEL) & (pl.col("k") == 5))
    assert few["median"].item() == pytest.approx(0.007, abs=5e-4)
    assert regret.needed(table, regret.RANDOM, few["median"].item()) is None  # up to 80
    assert regret.needed(table, regret.CLIMB, few["median"].item()) == 25
    assert regret.needed(table, regret.BYTES, few["median"].item()) == 6
