import json

import numpy as np
import polars as pl
import pytest

from utils import cost_report
from utils.cost_rows import KINDS, SLOT, score_rows, terms, without
from utils.cost_study import VARIANTS, fit_variant, prepare
from utils.cost_tables import LINEAR, row_values
from utils.dataset import GraphFile
from utils.files import save_npz, write_json
from utils.notebook import Run
from utils.synthetic import layout_graph


def graph_of(folder, seed, configs=120):
    arrays, _ = layout_graph(seed, "nlp", "random", 4, configs, rounds=0, noise=0.0)
    path = folder / f"mlp.s{seed}.npz"
    save_npz(path, **arrays)
    return prepare(GraphFile("layout:nlp:random", "train", f"mlp.s{seed}", path, ours=True))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    graphs = [graph_of(folder, seed) for seed in range(3)]
    return graphs, fit_variant(VARIANTS[""], graphs, LINEAR, threads=1)


def score_table(rows):
    names = ["model", "name", "tau", "ceiling"]
    table = pl.DataFrame(rows, schema=names, orient="row")
    return table.with_columns(
        collection=pl.lit("layout:nlp:random"), split=pl.lit("valid"), rankable=pl.lit(True)
    )


def test_overall_pairs_by_family():
    scores = score_table([
        ("cost_tables", "a.1", 0.8, 0.9), ("cost_tables", "a.2", 0.6, 0.9),
        ("cost_tables", "b.1", 0.4, 0.6), ("cost_tables", "b.1", 0.6, 0.6),  # two seeds
        ("byte_count", "a.1", 0.5, 0.9), ("byte_count", "a.2", 0.5, 0.9),
        ("byte_count", "b.1", 0.5, 0.6), ("byte_count", "c.1", 0.9, 0.9),  # c.1: no cost tables
    ])  # fmt: skip
    files = [
        GraphFile("layout:nlp:random", "valid", name, name, ours=True)
        for name in ("a.1", "a.2", "b.1", "c.1")
    ]
    table = {row["model"]: row for row in cost_report.overall(scores, files).to_dicts()}
    own, floor = table["cost_tables"], table["byte_count"]
    assert own["graphs"] == floor["graphs"] == 3 and own["families"] == 2
    assert own["tau"] == pytest.approx((0.8 + 0.6 + 0.5) / 3)
    assert own["of_ceiling"] == pytest.approx((0.8 + 0.6 + 0.5) / 2.4)
    assert own["difference"] == 0 and own["error"] == 0
    assert floor["difference"] == pytest.approx((0.2 + 0.0) / 2)  # families a and b
    assert floor["error"] == pytest.approx(0.1)
    said = cost_report.sentences("valid", cost_report.overall(scores, files))
    assert said[0].startswith("valid: cost_tables is 0.100 ± 0.100 ahead of byte_count; two")
    assert said[1] == "valid: cost_tables reaches 0.79 of the noise ceiling"
    assert cost_report.sentences("valid", cost_report.overall(scores[:0], files)) == [
        "valid: nothing to compare"
    ]


def test_gammas_are_counted(tmp_path):
    run = Run(tmp_path, tmp_path, tmp_path, [], ("layout:nlp:random",))
    folder = tmp_path / "tables" / "predictions" / "layout_nlp_random" / "cost_tables"
    for stem, gamma in (("valid_0_0", 1.0), ("family_cv_0_0_fold0", 0), ("test_0_0", 1.0)):
        write_json(folder / f"{stem}.json", {"gamma": gamma})
    assert cost_report.gammas(run).rows() == [
        ("layout:nlp:random", 0.0, 1), ("layout:nlp:random", 1.0, 1)
    ]  # fmt: skip


def test_shares_of_the_kinds_add_up(fitted):
    graphs, model = fitted
    shares = cost_report.kind_shares(model, graphs)
    assert list(shares) == list(KINDS) and sum(shares.values()) == pytest.approx(1)
    assert shares["slot"] > 0.2
    rows = without(graphs[0].rows, VARIANTS[""].kinds, VARIANTS[""].prefixes)
    value = row_values(model, rows, 1)
    score = score_rows(graphs[0].graph, rows, value)
    slots = score_rows(graphs[0].graph, rows, value * (rows.kind == SLOT))
    alone = cost_report.kind_shares(model, graphs[:1])
    assert alone["slot"] == pytest.approx(np.cov(slots, score)[0, 1] / score.var(ddof=1))


def test_the_costliest_layouts_are_not_row_major(fitted):
    graphs, model = fitted
    table = cost_report.layout_costs(model, graphs[0], top=4)
    assert table["adds"].is_sorted(descending=True) and table["adds"].min() > 0
    odd = "{" + ",".join(map(str, range(len(table["shape"][0].split("x"))))) + "}"
    assert table["costliest"][0] == odd != table["cheapest"][0]


def test_a_large_graph_scores_like_its_terms(fitted, tmp_path):
    graph = cost_report.large_graph(tmp_path, configs=1000, nodes=40)
    codes = graph.graph.codes
    assert codes.shape[0] == 1000 and 30 <= codes.shape[1] <= 50 and codes.flags.f_contiguous
    value = np.random.default_rng(0).standard_normal(len(graph.rows.kind))
    naive = value[terms(graph.graph, graph.rows)].sum(1)
    np.testing.assert_allclose(score_rows(graph.graph, graph.rows, value), naive, atol=1e-9)


def test_speed_counts_what_was_scored():
    seconds, rate = cost_report.speed(lambda: np.zeros(500), repeats=2)
    assert rate == pytest.approx(500 / seconds)


def test_one_graph_teaches_its_other_half(tmp_path):
    graph = graph_of(tmp_path, 9, configs=300)
    taus = cost_report.halves(graph, range(2), LINEAR, threads=1)
    assert len(taus) == 2 and min(taus) > 0.85


def test_saved_models_are_found_by_collection(tmp_path, fitted):
    _, model = fitted
    run = Run(tmp_path, tmp_path, tmp_path, [], ("layout:xla:random", "layout:nlp:random"))
    assert cost_report.saved_models(run) == {}
    stem = tmp_path / "models" / "layout_nlp_random" / "cost_tables"
    cost_report.cost_tables.save_model(model, stem)
    found = cost_report.saved_models(run)
    assert list(found) == ["layout:nlp:random"]
    assert found["layout:nlp:random"].names == model.names
    assert "gamma" in json.loads(stem.with_name("cost_tables.json").read_text())
