"""Records by hand, predictions expanded to every measured row, and the submission file."""

import json

import numpy as np
import polars as pl
import pytest
from toy_tables import toy_run

from utils import evaluate, ranking, study, submission
from utils.dataset import DataError, GraphFile
from utils.executables import fit_collections
from utils.files import write_json, write_parquet
from utils.notebook import Run, open_run, table_path
from utils.schema import COLLECTIONS
from utils.synthetic import write_data


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    """Enough for a toy."""
    monkeypatch.setattr(ranking, "RANK_TREES", 150)
    monkeypatch.setitem(ranking.HIST_PARAMETERS, "max_iter", 20)


def hand_run(tmp_path, collection, targets):
    """A run of valid graphs given as {name: targets of the rows}; every row is distinct."""
    files = [GraphFile(collection, "valid", n, tmp_path / n, ours=True) for n in targets]
    run = Run(tmp_path, tmp_path, tmp_path / "out", files, (collection,))
    for file in files:
        target = np.asarray(targets[file.name], np.float64)
        rows = pl.DataFrame({"distinct": np.arange(len(target), dtype=np.int32), "target": target})
        write_parquet(table_path(run, "rows", file), rows)
    return run


def put(run, model, scores, protocol="valid", seed=0, fold=None, **costs):
    collection = run.collections[0]
    stem = study.prediction_stem(run.out, collection, model, protocol, 0, seed, fold)
    files = {f.name: f for f in run.files}
    study.write_predictions(
        stem, {files[n]: np.asarray(s, np.float64) for n, s in scores.items()}, **costs
    )


def ceilings(run, value=0.9):
    rows = [
        {"collection": f.collection, "split": f.split, "name": f.name, "ceiling": value}
        for f in run.files
    ]
    return pl.DataFrame(rows)


def test_score_graph_by_hand():
    target = np.array([2.0, 1.0, 4.0, 3.0])
    found = evaluate.score_graph(target, np.array([1.0, 2.0, 3.0, 4.0]), tile=False)
    # Pairs in the wrong order: (0, 1) and (2, 3), so 4 of 6 are right.
    assert found["tau"] == pytest.approx((4 - 2) / 6)
    assert found["opa"] == pytest.approx(4 / 6)
    assert found["slowdown1"] == pytest.approx(1.0)  # 2 chosen, 1 is the fastest
    assert found["slowdown5"] == 0 and found["tile_score"] is None
    many = np.arange(1.0, 11.0)
    assert evaluate.score_graph(many, -many, tile=True)["tile_score"] == pytest.approx(2 - 6 / 1)


def test_records_by_hand(tmp_path):
    run = hand_run(
        tmp_path, "layout:xla:default",
        {"a": [2, 1, 4, 3], "b": [1, 2], "flat": [5, 5, 5], "single": [9]},
    )  # fmt: skip
    scores = {"a": [1, 2, 3, 4], "b": [0, 1], "flat": [0, 1, 2], "single": [0]}
    put(run, "gnn", scores, fit_s=2.0, predict_s=0.5, peak_mb=100.0)
    table = evaluate.with_ceiling(evaluate.graph_scores(run, ["valid"]), ceilings(run))
    assert table.filter(~pl.col("rankable"))["name"].to_list() == ["flat", "single"]
    (record,) = evaluate.records(table, evaluate.fit_costs(run, ["valid"]))
    assert tuple(record) == evaluate.RECORD
    expected = {
        "collection": "layout:xla:default", "model": "gnn", "protocol": "valid",
        "fold_assignment": None, "seed": 0, "graphs": 2, "rows": 6, "tau": (1 / 3 + 1) / 2,
        "tau_sd_graphs": np.std([1 / 3, 1], ddof=1), "slowdown1": 0.5, "slowdown5": 0.0,
        "opa": (4 / 6 + 1) / 2, "tile_score": None, "ceiling": 0.9, "fit_s": 2.0,
        "predict_s": 0.5, "configs_per_s": 20.0, "peak_mb": 100.0,
    }  # fmt: skip
    assert record == pytest.approx(expected)


def test_folds_are_one_record_and_floors_have_no_costs(tmp_path):
    run = hand_run(tmp_path, "tile:xla", {"a": [1, 2, 3], "b": [3, 2, 1]})
    put(run, "m", {"a": [1, 2, 3]}, "family_cv", fold=0, fit_s=1.0, predict_s=0.1, peak_mb=9.0)
    put(run, "m", {"b": [1, 2, 3]}, "family_cv", fold=1, fit_s=2.0, predict_s=0.2, peak_mb=7.0)
    put(run, "byte_count", {"a": [0, 0, 0], "b": [0, 0, 1]}, "family_cv")
    table = evaluate.with_ceiling(evaluate.graph_scores(run, ["family_cv"]), ceilings(run, None))
    floor, model = evaluate.records(table, evaluate.fit_costs(run, ["family_cv"]))
    assert (floor["model"], floor["fit_s"], floor["configs_per_s"]) == ("byte_count", None, None)
    assert (model["graphs"], model["tau"], model["fold_assignment"]) == (2, 0.0, 0)
    assert (model["fit_s"], model["peak_mb"], model["ceiling"]) == (3.0, 9.0, None)
    assert model["predict_s"] == pytest.approx(0.3) and model["tile_score"] == 1.0


def test_every_measured_row_counts_with_the_score_of_its_configuration(tmp_path):
    run = hand_run(tmp_path, "layout:xla:random", {"a": [1, 2, 3]})
    rows = pl.DataFrame(
        {"distinct": np.array([0, 1, 0, 2], np.int32), "target": [1.0, 2.0, 1.5, 3.0]}
    )
    write_parquet(table_path(run, "rows", run.files[0]), rows)
    put(run, "m", {"a": [5, 6, 7]})
    found = evaluate.graph_scores(run, ["valid"]).to_dicts()[0]
    assert found["rows"] == 4
    # Five pairs in order, one tied in the score only: tau-b = 5 / sqrt(6 * 5).
    assert found["tau"] == pytest.approx(5 / 30**0.5)
    part = pl.DataFrame({"config": [2, 0, 1], "score": [7.0, 5.0, 6.0]})
    assert evaluate.expand(part, np.array([0, 1, 0, 2])).tolist() == [5, 6, 5, 7]


def test_predictions_that_do_not_fit_are_errors(tmp_path):
    run = hand_run(tmp_path, "layout:xla:random", {"a": [1, 2, 3]})
    put(run, "m", {"a": [5, 6]})
    with pytest.raises(DataError, match="2 scores for 3 configurations"):
        evaluate.graph_scores(run, ["valid"])
    put(run, "m", {"a": [5, 6, np.nan]})
    with pytest.raises(DataError, match="finite"):
        evaluate.graph_scores(run, ["valid"])
    put(run, "m", {"a": [5, 6, 7]})
    put(run, "m", {"a": [5, 6, 7]}, fold=0)
    with pytest.raises(DataError, match="a second time"):
        evaluate.graph_scores(run, ["valid"])


def test_metrics_of_other_protocols_and_collections_are_kept(tmp_path):
    def record(collection, protocol, tau):
        return dict.fromkeys(evaluate.RECORD) | {
            "collection": collection, "model": "m", "protocol": protocol, "seed": 0, "tau": tau,
        }  # fmt: skip

    path = tmp_path / "metrics.json"
    write_json(path, [record(c, p, 0.1) for c in ("a", "b") for p in ("test", "valid")])
    merged = evaluate.update_metrics(path, [record("a", "valid", 0.2)], ["valid"], ["a"])
    assert merged == json.loads(path.read_text())
    assert [(r["collection"], r["protocol"], r["tau"]) for r in merged] == [
        ("a", "test", 0.1), ("a", "valid", 0.2), ("b", "test", 0.1), ("b", "valid", 0.1),
    ]  # fmt: skip


def test_why_low_names_what_sets_a_graph_apart(tmp_path):
    run = hand_run(tmp_path, "layout:xla:default", {"good": [1, 2, 3], "bad": [1, 2, 3]})
    put(run, "m", {"good": [1, 2, 3], "bad": [3, 2, 1]})
    table = evaluate.with_ceiling(evaluate.graph_scores(run, ["valid"]), ceilings(run, 0.5))
    graphs = ceilings(run).drop("ceiling").with_columns(
        family=pl.col("name"), distinct=3, config_nodes=9, spread=1.05
    )
    found = evaluate.why_low(table, graphs, trained=frozenset({("layout:xla:default", "good")}))
    assert found["name"].to_list() == ["bad", "good"]
    assert found["below"].to_list() == pytest.approx([1.5, -0.5])
    assert found["why"][0] == (
        "mostly noise, slowest only 1.05x the fastest, only 3 configurations, "
        "a family that was not trained on"
    )


def test_paired_differences_by_hand(tmp_path):
    right, wrong = [1, 2, 3], [3, 2, 1]
    run = hand_run(tmp_path, "layout:xla:default", {n: right for n in ("f.1", "f.2", "g.1")})
    for seed in (0, 1):
        put(run, "rank_pairwise", {"f.1": right, "f.2": wrong, "g.1": wrong}, seed=seed)
    put(run, "gnn", {"f.1": right, "f.2": right, "g.1": wrong})
    table = evaluate.graph_scores(run, ["valid"])
    (row,) = evaluate.paired_differences(table, run.files).to_dicts()
    # Family f: 0 and +2, so +1; family g: 0. Seed 1 has no partner.
    assert (row["model"], row["difference"], row["families"]) == ("gnn", 0.5, 2)
    assert row["error"] == pytest.approx(np.std([1, 0], ddof=1) / 2**0.5)


def finished(tmp_path, **options):
    """A run with everything that 05 and 08 leave."""
    run = toy_run(tmp_path, **options)
    study.run_fits(run, study.plan(run, folds=3).fits, threads=1)
    graphs = pl.read_parquet(run.out / "tables" / "graphs.parquet")
    found = evaluate.graph_scores(run, ["valid", "family_cv"])
    table = evaluate.with_ceiling(found, graphs)
    return run, evaluate.records(table, evaluate.fit_costs(run, ["valid", "family_cv"]))


def test_submission_covers_every_test_graph_of_all_collections(tmp_path):
    run, records = finished(tmp_path)
    chosen = submission.choose_models(run, records)
    assert [choice["collection"] for choice in chosen] == list(COLLECTIONS)
    for choice in chosen:
        means = submission.mean_scores(records, choice["collection"], "valid")
        means = {m: s for m, s in means.items() if m in ("byte_count", *ranking.TRAINED)}
        assert choice["reason"] == "best on valid" and choice["model"] == max(means, key=means.get)
    path = tmp_path / "submission.csv"
    submission.write_submission(path, submission.submission_rows(run, chosen))
    lines = path.read_text().splitlines()
    assert lines[0] == "ID,TopConfigs"
    tests = [file for file in run.files if file.split == "test"]
    assert [line.split(",")[0] for line in lines[1:]] == [file.id for file in tests]
    for line in lines[1:]:
        identity, text = line.split(",")
        indices = [int(i) for i in text.split(";")]
        if identity.startswith("tile:"):
            assert len(set(indices)) == 5 and set(indices) < set(range(43))
        else:
            assert sorted(indices) == list(range(43))  # all rows, repeats included


def test_submission_order_is_the_ranking_of_the_score(tmp_path):
    run, records = finished(tmp_path, collections=("layout:nlp:random",))
    chosen = [{"collection": "layout:nlp:random", "model": "byte_count"}]
    identity, text = submission.submission_rows(run, chosen)[0]
    file = next(f for f in run.files if f.id == identity)
    cost = pl.read_parquet(table_path(run, "features", file))["node_byte_count"].to_numpy()
    order = [int(i) for i in text.split(";")]
    distinct, _ = evaluate.file_rows(run, file)
    assert (np.diff(cost[distinct[order]]) >= 0).all()


def test_solution_scores_the_test_split(tmp_path):
    run, _ = finished(tmp_path, collections=("tile:xla",))
    solution = submission.read_solution(run.data, run.files)
    table = evaluate.graph_scores(run, ["test"], solution)
    assert set(table["name"]) == {f.name for f in run.files if f.split == "test"}
    trained = table.filter(pl.col("model") == "rank_pairwise")
    assert trained["tau"].min() > 0.5 and set(table["protocol"]) == {"test"}
    assert evaluate.graph_scores(run, ["test"]).is_empty()  # no labels without the solution
    assert submission.read_solution(tmp_path / "nowhere", run.files) == {}
    with pytest.raises(DataError, match="no runtimes of tile:xla:other"):
        other = GraphFile("tile:xla", "test", "other", tmp_path, ours=True)
        submission.read_solution(run.data, [other])


def test_rounds_in_the_solution_give_ceilings(tmp_path):
    write_data(tmp_path / "data", graphs={"train": 1, "test": 1}, configs=12)
    run = open_run(tmp_path, str(tmp_path / "data"), "out")
    with pytest.raises(FileNotFoundError, match="run notebook 01 first"):
        submission.solution_ceilings(run)
    fit_collections(run)
    found = submission.solution_ceilings(run)
    assert found["collection"].to_list() == list(COLLECTIONS)
    assert found["ceiling"].null_count() == 0 and 0.7 < found["ceiling"].min() <= 1
    (tmp_path / "data" / "solution.npz").unlink()
    assert submission.solution_ceilings(run).is_empty()


def test_tile_solution_may_bring_its_normalizer(tmp_path):
    file = GraphFile("tile:xla", "test", "k", tmp_path, ours=True)
    runtime, normalizer = np.array([10, 30]), np.array([10, 10])
    np.savez(tmp_path / "solution.npz", **{file.id: runtime, f"{file.id}/normalizer": normalizer})
    assert submission.read_solution(tmp_path, [file])[file.id].tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    "graphs, model, reason",
    [
        ({"test": 1}, "byte_count", "no labelled training graph"),
        ({"train": 1, "test": 1}, "rank_pairwise", "no labelled graphs to check it on"),
        ({"train": 6, "test": 1}, None, "best on family_cv"),
    ],
)
def test_choice_without_a_valid_split(tmp_path, graphs, model, reason):
    run, records = finished(tmp_path, collections=("layout:xla:default",), graphs=graphs)
    (choice,) = submission.choose_models(run, records)
    assert reason in choice["reason"] and choice["model"] == (model or choice["model"])
    assert len(submission.submission_rows(run, [choice])) == 1


def test_models_that_mean_nothing_for_a_new_program_are_no_candidates(tmp_path):
    run, records = finished(tmp_path, collections=("layout:xla:default",))
    files = [f for f in run.files if f.split == "test"]
    for model in ("rank_pairwise/with_trans", "gnn"):
        stem = study.prediction_stem(run.out, "layout:xla:default", model, "test", 0, 0)
        study.write_predictions(stem, {f: np.arange(40.0) for f in files})
    found = submission.candidates(run)["layout:xla:default"]
    assert sorted(found) == ["byte_count", "gnn", "hist_gbrt", "rank_pairwise"]
    records += [
        dict.fromkeys(evaluate.RECORD)
        | {"collection": "layout:xla:default", "model": m, "protocol": "valid", "tau": 0.99}
        for m in ("gnn", "rank_pairwise/with_trans", "config_frequency")
    ]
    assert submission.choose_models(run, records)[0]["model"] == "gnn"


def test_a_test_graph_without_predictions_is_named(tmp_path):
    run, records = finished(tmp_path, collections=("tile:xla",))
    chosen = submission.choose_models(run, records)
    run.files.append(GraphFile("tile:xla", "test", "late.9", tmp_path / "late.9.npz", ours=True))
    with pytest.raises(DataError, match="late.9.npz"):
        submission.submission_rows(run, chosen)
