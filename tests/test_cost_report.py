import json

import numpy as np
import polars as pl
import pytest

from utils import cost_report, cost_tables
from utils.cost_graphs import prepare
from utils.cost_rows import KINDS, SLOT, score_rows
from utils.cost_study import FULL, fit_variant, seen_rows
from utils.cost_tables import LINEAR, row_values
from utils.dataset import GraphFile
from utils.files import save_npz, write_json
from utils.layout_rows import byte_count
from utils.model_files import model_stem
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
    return graphs, fit_variant(FULL, graphs, LINEAR, threads=1)


def score_table(rows):
    names = ["model", "name", "tau", "ceiling"]
    table = pl.DataFrame(rows, schema=names, orient="row")
    return table.with_columns(
        collection=pl.lit("layout:nlp:random"), split=pl.lit("valid"), rankable=pl.lit(True),
        fold_assignment=pl.lit(0), seed=pl.lit(0),
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
    one = cost_report.overall(scores.filter(pl.col("name") == "a.1"), files)
    said = cost_report.sentences("valid", one)
    assert said == ["valid: cost_tables is 0.300 ahead of byte_count, on a single family"]
    assert cost_report.sentences("valid", cost_report.overall(scores[:0], files)) == [
        "valid: nothing to compare"
    ]
    assert cost_report.beside_the_ceiling("valid", cost_report.overall(scores, files)) == [
        "valid: cost_tables reaches 0.79 of the noise ceiling, byte_count 0.62; "
        "of what that leaves, 44% is found"
    ]
    ahead = scores.with_columns(tau=0.5 * pl.col("tau"), model=pl.col("model").replace(
        {"cost_tables": "byte_count", "byte_count": "cost_tables"}))  # fmt: skip
    (said,) = cost_report.beside_the_ceiling("valid", cost_report.overall(ahead, files))
    assert said.endswith("nothing more is found")
    assert cost_report.beside_the_ceiling("valid", cost_report.overall(scores[:0], files)) == []


def test_an_ablation_is_compared_on_its_own_draws():
    scores = score_table([
        ("cost_tables", "a.1", 0.8, 0.9), ("cost_tables", "a.1", 0.4, 0.9),
        ("cost_tables/no_out", "a.1", 0.7, 0.9), ("byte_count", "a.1", 0.5, 0.9),
    ]).with_columns(fold_assignment=pl.Series([0, 1, 0, 0]))  # fmt: skip
    files = [GraphFile("layout:nlp:random", "valid", "a.1", "a.1", ours=True)]
    table = {row["model"]: row for row in cost_report.overall(scores, files).to_dicts()}
    assert table["cost_tables/no_out"]["difference"] == pytest.approx(0.8 - 0.7)
    assert table["byte_count"]["difference"] == pytest.approx(0.6 - 0.5)  # a floor has no draws
    assert table["cost_tables"]["difference"] == 0


def test_gammas_are_counted_and_compared_with_the_stored_one(tmp_path):
    collection = "layout:nlp:random"
    file = GraphFile(collection, "train", "mlp.a", tmp_path, ours=True)
    run = Run(tmp_path, tmp_path, tmp_path, [file], (collection, "tile:xla"))
    folder = tmp_path / "tables" / "predictions" / "layout_nlp_random" / "cost_tables"
    assert cost_report.gammas(run).is_empty()
    write_json(folder / "valid_0_0.json", {"gamma": 1, "gamma_taus": {}})
    write_json(folder / "test_0_0.json", {"gamma": 1, "gamma_taus": {}})
    assert cost_report.gammas(run).rows() == [(collection, 1.0, True, 1, None)]
    said = cost_report.gamma_sentences(cost_report.gammas(run))
    assert said == ["layout:nlp:random: gamma 1 was given"]
    for stem, gamma, taus in (("valid_0_0", 0.5, (0.5, 0.4)), ("valid_0_1", 0.5, (0.7, 0.5))):
        tried = dict(zip((0.5, 1), taus))
        write_json(folder / f"{stem}.json", {"gamma": gamma, "gamma_taus": tried})
    table = cost_report.gammas(run)
    assert table.drop("tau").rows() == [(collection, 0.5, False, 2), (collection, 1.0, True, 0)]
    assert table["tau"].to_list() == pytest.approx([0.6, 0.45])
    assert cost_report.gamma_sentences(table) == [
        "layout:nlp:random: gamma 0.5 was chosen by 2 of 2 fits; 0.5 is best on held-out "
        "families, 0.150 ahead of the stored 1"
    ]
    write_json(folder / "valid_0_0.json", {"gamma": 1, "gamma_taus": {1: 0.9, 0.5: 0.1}})
    (said,) = cost_report.gamma_sentences(cost_report.gammas(run))
    assert said.endswith("1 is best on held-out families, as is stored")


def test_shares_add_up_and_the_byte_count_has_the_first_say(fitted):
    graphs, model = fitted
    shares = cost_report.score_shares(model, graphs)
    assert list(shares) == ["byte_count", *KINDS] and sum(shares.values()) == pytest.approx(1)
    alone = cost_report.score_shares(model, graphs[:1])
    graph, rows = graphs[0].graph, seen_rows(graphs[0].rows)
    value = row_values(model, rows, 1)
    score = score_rows(graph, rows, value)
    explained = np.corrcoef(byte_count(graph), score)[0, 1] ** 2
    assert alone["byte_count"] == pytest.approx(explained) and 0.1 < explained < 1
    slots = score_rows(graph, rows, value * (rows.kind == SLOT))
    line = np.polynomial.Polynomial.fit(byte_count(graph), score, 1)
    rest = score - line(byte_count(graph))
    assert alone["slot"] == pytest.approx(np.cov(slots, rest)[0, 1] / score.var(ddof=1))


def test_shares_in_words():
    shares = {"byte_count": 0.5, "slot": 0.1, "pair": 0.4, "fixed": 0.0, "out": 0.0}
    assert cost_report.share_sentence("layout:nlp:random", shares) == (
        "layout:nlp:random: the byte count explains 50% of the scores; the rest by kind of row: "
        "pair 80%, slot 20%, fixed 0%, out 0%"
    )


def test_the_costliest_layouts_are_not_row_major(fitted):
    graphs, model = fitted
    table = cost_report.layout_costs(model, graphs[0], top=4)
    assert table["adds"].is_sorted(descending=True) and table["adds"].min() > 0
    odd = "{" + ",".join(map(str, range(len(table["shape"][0].split("x"))))) + "}"
    assert table["costliest"][0] == odd != table["cheapest"][0]


def test_one_graph_teaches_its_other_half(tmp_path):
    graph = graph_of(tmp_path, 9, configs=300)
    taus = cost_report.halves(graph, range(2), LINEAR, threads=1)
    assert len(taus) == 2 and min(taus) > 0.85


def test_saved_models_are_found_by_collection(tmp_path, fitted):
    _, model = fitted
    run = Run(tmp_path, tmp_path, tmp_path, [], ("layout:xla:random", "layout:nlp:random"))
    assert cost_report.saved_models(run) == {}
    stem = model_stem(tmp_path, "layout:nlp:random", "cost_tables")
    cost_tables.save_model(model, stem)
    found = cost_report.saved_models(run)
    assert list(found) == ["layout:nlp:random"]
    assert found["layout:nlp:random"].names == model.names
    assert "gamma" in json.loads(stem.with_name("cost_tables.json").read_text())
