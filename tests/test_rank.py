"""Ranking files from the shell: the scores are the model's, and every mistake is one clear line."""

import csv
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from utils import cost_tables, rank, ranking, saved_models, synthetic
from utils.coding import deduplicate, read_graph
from utils.cost_rows import cost_rows, terms
from utils.dataset import GraphFile, index
from utils.feature_tables import feature_tables
from utils.files import save_npz
from utils.graph_stats import graph_statistics
from utils.hlo import read_layout_pb, read_tile_pb
from utils.message_passing import fit_reducer, node_vectors, save_reducer
from utils.training import features_of
from utils.vector_tables import pool

ROOT = Path(__file__).resolve().parents[1]
REAL = Path(os.environ.get("TPUGRAPHS_DIR", ROOT.parent / "shared" / "tpugraphs"))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(folder of models, files by collection): one small model of each kind."""
    folder = tmp_path_factory.mktemp("rank")
    which = ("layout:xla:random", "tile:xla")
    split = {"train": 2, "valid": 1, "test": 0}
    data = synthetic.write_data(folder / "data", 0, split, 30, 2, collections=which)
    files = index(data)
    models = folder / "run" / "models"
    reducer = fit_reducer([f for f in files if f.split == "train"], 2, 0)
    save_reducer(models / "message_passing.npz", reducer)
    for collection in which:
        graphs = [read_graph(f) for f in files if (f.collection, f.split) == (collection, "train")]
        place, facts = models / collection.replace(":", "_"), {"collection": collection}
        if collection != "tile:xla":
            distinct = [deduplicate(graph)[0] for graph in graphs]
            rows = [cost_rows(graph) for graph in distinct]
            taken = [terms(g, r) for g, r in zip(distinct, rows)]
            fitted = cost_tables.fit(rows, taken, [g.target for g in distinct], trees=5)
            cost_tables.save_model(fitted, place / "cost_tables", **facts)
        tables = [table_of(graph, reducer)[0] for graph in graphs]
        values, names = zip(*map(features_of, tables))
        target = np.concatenate([table["target"].to_numpy() for table in tables])
        number = np.repeat([0, 1], [len(table) for table in tables])
        ranker = ranking.fit("rank_pairwise", np.concatenate(values), names[0], target, number)
        ranking.save_model(ranker, place / "rank_pairwise", **facts)
    return folder / "run", {c: [f for f in files if f.collection == c] for c in which}


def table_of(graph, reducer):
    vectors = node_vectors(graph, reducer)
    own = None if graph.codes is None else vectors
    return feature_tables(graph, graph_statistics(graph), own, pool(graph, vectors))


@pytest.fixture
def run(world, capsys):
    """Runs the command with the world's models; gives (status, output, lines of errors)."""
    def run(*words, model=world[0]):
        status = rank.main([*map(str, words), "--model", str(model)])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()
    return run


def test_cost_tables_rank_every_row_of_a_file(world, run):
    run_folder, files = world
    file = files["layout:xla:random"][0]
    status, out, errors = run(file.path, "--format", "csv")
    found = list(csv.DictReader(io.StringIO(out)))
    graph = read_graph(file)
    model = cost_tables.load_model(run_folder / "models/layout_xla_random/cost_tables")
    score = cost_tables.predict(model, graph, cost_rows(graph))
    assert (status, errors) == (0, [])
    assert [int(row["config"]) for row in found] == np.argsort(score, kind="stable").tolist()
    in_order = np.sort(score, kind="stable")
    assert [int(row["rank"]) for row in found] == [1 + sum(in_order < s) for s in in_order]
    np.testing.assert_allclose([float(row["score"]) for row in found], in_order)
    np.testing.assert_allclose([float(row["above_best"]) for row in found], in_order - in_order[0])
    assert {row["collection"] for row in found} == {"layout:xla:random"}


@pytest.mark.parametrize("collection", ["layout:xla:random", "tile:xla"])
def test_the_pairwise_ranker_ranks_every_row_of_a_file(world, run, collection):
    run_folder, files = world
    stem = run_folder / "models" / collection.replace(":", "_") / "rank_pairwise"
    file = files[collection][-1]
    status, out, _ = run(file.path, "--format", "json", model=f"{stem}.ubj")
    (found,) = json.loads(out)
    reducer = saved_models.load_reducer(run_folder / "models" / "message_passing.npz")
    table, rows = table_of(read_graph(file), reducer)
    score = ranking.predict(ranking.load_model(stem), *features_of(table))[rows["distinct"]]
    assert status == 0 and found["model"] == str(stem)
    assert [row["config"] for row in found["ranking"]] == np.argsort(score, kind="stable").tolist()
    np.testing.assert_allclose([row["score"] for row in found["ranking"]], np.sort(score))


def test_top_and_the_table_and_a_list_on_standard_input(world, run, monkeypatch):
    paths = [files[0].path for files in world[1].values()]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{paths[0]}\n\n{paths[1]}\n"))
    status, out, _ = run("-", "--top", 2)
    first, second = out.strip().split("\n\n")
    assert first.startswith(f"{paths[0]}: layout:xla:random (by its path), 30 configurations\n")
    assert second.startswith(f"{paths[1]}: tile:xla (by its path), 30 configurations\n")
    assert status == 0 and first.splitlines()[3].split()[:2] == ["rank", "config"]
    assert first.splitlines()[4].split()[0] == "1"
    with_options_between = run(paths[0], "--top", 2, paths[1])
    assert with_options_between == (0, out, [])


def test_configurations_of_equal_score_share_a_rank():
    score = np.array([3.0, 1.0, 2.0, 1.0, 2.0, 2.0])
    ranked = rank.Ranked("a.npz", "tile:xla", "as given", Path("m"), score, default=4)
    assert [(row[2], row[3]) for row in rank.rows(ranked)] == [
        (1, 1), (1, 3), (3, 2), (3, 4), (3, 5), (6, 0),
    ]  # fmt: skip
    found = rank.as_json(ranked, 3)["ranking"]
    assert [(row["rank"], row["config"]) for row in found] == [(1, 1), (1, 3), (3, 2)]
    lines = rank.table(ranked, 3).splitlines()
    assert lines[2] == "the compiler's own choice, 4, is ranked 3, tied with 2 more"
    assert [line.split()[:2] for line in lines[4:7]] == [["1", "1"], ["1", "3"], ["3", "2"]]
    assert lines[7:] == ["and 2 more of rank 3"]
    assert "more of rank" not in rank.table(ranked, 5).splitlines()[-1]


def test_the_default_is_named_and_compared_with(world, run, tmp_path):
    arrays, _ = synthetic.layout_graph(3, "xla", "random", 2, 20)
    arrays["node_config_feat"][:, 0, 0] = 0
    arrays["node_config_feat"][13] = -1
    save_npz(tmp_path / "mine.npz", **arrays)
    model = world[0] / "models/layout_xla_random/cost_tables.json"
    _, out, _ = run(tmp_path / "mine.npz", "--format", "json", model=model)
    (found,) = json.loads(out)
    assert found["default_config"] == 13 and found["collection_found"] == "by the model"
    scores = {row["config"]: row for row in found["ranking"]}
    assert scores[13]["above_default"] == 0
    for row in found["ranking"]:
        assert row["above_default"] == pytest.approx(row["score"] - scores[13]["score"])
    _, out, _ = run(tmp_path / "mine.npz")
    assert "(a guess by its contents: --collection says otherwise)" in out
    assert "the compiler's own choice, 13, is ranked" in out
    arrays["node_config_feat"][13, 0, 0] = 0
    save_npz(tmp_path / "mine.npz", **arrays)
    _, out, _ = run(tmp_path / "mine.npz")
    assert "the compiler's own choice is not among them" in out


def test_why_another_is_behind_the_best_adds_up_to_how_far(world, run, tmp_path):
    """Of both kinds of model: in json every term, in a table the first ones and the rest."""
    arrays, _ = synthetic.layout_graph(3, "xla", "random", 2, 20)
    arrays["node_config_feat"][:, 0, 0] = 0
    save_npz(tmp_path / "layout" / "xla" / "random" / "none.npz", **arrays)
    arrays["node_config_feat"][13] = -1
    save_npz(tmp_path / "layout" / "xla" / "random" / "own.npz", **arrays)
    arrays, _ = synthetic.tile_graph(3, configs=20)
    save_npz(tmp_path / "tile" / "xla" / "none.npz", **arrays)
    slow = arrays["config_runtime"].argmax()
    arrays["config_runtime_normalizers"][:] = arrays["config_runtime"][slow]
    save_npz(tmp_path / "tile" / "xla" / "own.npz", **arrays)
    seen = []
    for file in sorted(tmp_path.rglob("*.npz")):
        (found,) = json.loads(run(file, "--explain", "--format", "json")[1])
        score = {row["config"]: row["score"] for row in found["ranking"]}
        order, default, said = list(score), found["default_config"], found["explanation"]
        own = default not in (None, order[0])
        seen.append(own)
        assert (default is None) == (file.stem == "none")
        assert (said["slower"], said["faster"]) == (default if own else order[-1], order[0])
        gap, adds = score[said["slower"]] - score[order[0]], [t["adds"] for t in said["terms"]]
        assert gap > 0 and sum(adds) == pytest.approx(gap, abs=1e-6)
        lines = run(file, "--explain", "--top", 1)[1].rstrip().splitlines()
        name = "the compiler's own choice" if own else "the slowest"
        start = f"{name} ({said['slower']}) is slower than the best ({order[0]}) by {gap:.3f}; the "
        (told,) = [i for i, line in enumerate(lines) if line.startswith(start)]
        shown = [float(line.split()[0]) for line in lines[told + 1 :]]
        assert shown[:5] == pytest.approx(adds[:5], abs=1e-4)
        assert sum(shown) == pytest.approx(gap, abs=1e-3)
        assert lines[-1].endswith(f"the other {len(adds) - 5} together") or len(adds) <= 5
        assert "explanation" not in json.loads(run(file, "--format", "json")[1])[0]
    assert set(seen) == {True, False}


def test_the_default_of_a_tile_kernel_takes_as_long_as_its_normalizer(world):
    graph = read_graph(world[1]["tile:xla"][0])
    assert rank.default_config(graph) is None
    graph.normalizer[:] = graph.runtime[7]
    assert rank.default_config(graph) == np.flatnonzero(graph.runtime == graph.runtime[7])[0]
    graph.runtime[:] = 0
    assert rank.default_config(graph) is None


def test_the_collection_comes_from_the_option_the_path_or_the_contents(world, tmp_path):
    files = world[1]
    file = files["layout:xla:random"][0]
    assert rank.collection_of(file.path, None, None) == ("layout:xla:random", "by its path")
    assert rank.collection_of(file.path, None, "layout:nlp:default")[0] == "layout:nlp:default"
    inside = tmp_path / "layout_nlp_default" / "x.npz"
    assert rank.collection_of(inside, None, None)[0] == "layout:nlp:default"
    for collection, ours in files.items():
        shutil.copy(ours[0].path, tmp_path / "x.npz")
        assert rank.collection_of(tmp_path / "x.npz", None, None)[0] == collection
    arrays, _ = synthetic.layout_graph(0, "nlp", configs=5)
    save_npz(tmp_path / "x.npz", **arrays)
    assert rank.collection_of(tmp_path / "x.npz", None, None)[0] == "layout:nlp:random"


# --- mistakes ---

def test_files_that_are_bad_do_not_stop_the_others(world, run, tmp_path):
    good = world[1]["tile:xla"][0].path
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    (tmp_path / "bad.pb").write_bytes(b"\xff\xff\xff")
    save_npz(tmp_path / "other.npz", x=np.zeros(3))
    names = [tmp_path / name for name in ("absent.npz", "absent.pb", "bad.npz", "bad.pb",
                                          "other.npz")]
    status, out, errors = run(*names[:3], good, *names[3:], "--format", "json")
    assert status == 1 and [found["file"] for found in json.loads(out)] == [str(good)]
    assert [str(name) in line for name, line in zip(names, errors, strict=True)] == [True] * 5
    for line, what in zip(errors, ["no such file", "o such file", "damaged or not an npz file",
                                   "not a serialized", "neither a layout nor a tile file"]):
        assert line.startswith("error: ") and what in line


def spoil_version(place):
    facts = json.loads((place / "cost_tables.json").read_text())
    (place / "cost_tables.json").write_text(json.dumps(facts | {"feature_version": 999}))


def spoil_columns(place):
    facts = json.loads((place / "cost_tables.json").read_text())
    (place / "cost_tables.json").write_text(json.dumps(facts | {"names": ["a", "b"]}))


MISTAKES = {
    "another version": (spoil_version, "made for feature version 999, this is version"),
    "other features": (spoil_columns, "these rows have other features than the model"),
    "cut trees": (lambda p: (p / "cost_tables.ubj").write_bytes(
        (p / "cost_tables.ubj").read_bytes()[:500]), "damaged model"),
    "not JSON": (lambda p: (p / "cost_tables.json").write_text("{"), "damaged, not JSON"),
    "no facts": (lambda p: (p / "cost_tables.json").write_text("{}"), "does not say of which coll"),
    "another kind": (lambda p: (p / "cost_tables.json").write_text(
        '{"model": "gnn", "collection": "layout:xla:random"}'), "no model that can rank files"),
    "no trees": (lambda p: (p / "cost_tables.ubj").unlink(), "no such model, expected"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_model_that_is_not_what_it_should_be_gives_one_line(world, run, tmp_path, case):
    spoil, what = MISTAKES[case]
    place = tmp_path / "models" / "layout_xla_random"
    shutil.copytree(world[0] / "models" / "layout_xla_random", place)
    spoil(place)
    file = world[1]["layout:xla:random"][0].path
    status, out, errors = run(file, model=place / "cost_tables")
    assert status == 1 and out == "" and len(errors) == 1
    assert errors[0].startswith("error: ") and what in errors[0]


def test_models_that_are_missing_or_of_the_wrong_kind(world, run, tmp_path, monkeypatch, capsys):
    folder, files = world
    tile, layout = (files[c][0].path for c in ("tile:xla", "layout:xla:random"))
    stem = folder / "models" / "tile_xla" / "rank_pairwise"
    assert run(layout, model=stem)[2] == [
        f"error: {layout}: of layout:xla:random (by its path), but the model {stem} is of tile:xla"
    ]
    cost = folder / "models" / "layout_xla_random" / "cost_tables"
    assert run(tile, model=cost)[2][0].endswith(f"the model {cost} is of layout:xla:random")
    assert "no model of tile:xla in" in run(tile, model=tmp_path)[2][0]
    alone = tmp_path / "models" / "tile_xla"
    shutil.copytree(stem.parent, alone)
    assert "message_passing.npz: missing" in run(tile, model=tmp_path)[2][0]
    monkeypatch.setattr(saved_models, "ROOT", tmp_path)
    assert rank.main([str(tile)]) == 1
    error = capsys.readouterr().err
    assert "no model of tile:xla in outputs/sample or outputs/sample_run: run ./run_all" in error


def test_files_of_another_kind_folders_and_tars(world, run, tmp_path, monkeypatch):
    tile, layout = (world[1][c][0].path for c in ("tile:xla", "layout:xla:random"))
    assert run(layout, "--collection", "tile:xla")[2] == [
        f"error: {layout}: a layout file, not one of tile:xla (as given)"
    ]
    assert run(tile, "--collection", "layout:nlp:default")[2] == [
        f"error: {tile}: a tile file, not one of layout:nlp:default (as given)"
    ]
    folder = layout.parent
    assert run(folder)[2] == [
        f"error: {folder}: a folder; name the files in it, such as {folder}/*.npz"
    ]
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tile, "x/tile.npz")
    assert "a.tar: a tar; name a file in it" in run(tmp_path / "a.tar")[2][0]
    assert run(tmp_path / "a.tar/x/tile.npz")[0] == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run("-")[::2] == (1, ["error: -: no name of a file on standard input"])


def test_an_unknown_collection_names_the_others(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("a.npz", "--collection", "xla")
    error = capsys.readouterr().err
    assert "layout:nlp:random" in error and "tile:xla" in error


def test_models_are_looked_for_in_the_newest_run_first(world, tmp_path, monkeypatch):
    monkeypatch.setattr(saved_models, "ROOT", tmp_path)
    kept = tmp_path / "outputs" / "sample_run"
    shutil.copytree(world[0], kept)
    find = saved_models.find_model
    assert find(None, "tile:xla") == kept / "models/tile_xla/rank_pairwise"
    assert find(None, "layout:xla:random") == kept / "models/layout_xla_random/cost_tables"
    newest = tmp_path / "outputs" / "sample" / "models" / "tile_xla"
    shutil.copytree(kept / "models" / "tile_xla", newest)
    assert find(None, "tile:xla") == newest / "rank_pairwise"
    assert find(None, "layout:xla:random") == kept / "models/layout_xla_random/cost_tables"


def test_the_raw_and_the_npz_file_of_a_graph_are_ranked_alike(world, tmp_path):
    """The two files of the release share the graph, not the runs: these are written again."""
    raw = REAL / "pb" / "layout" / "unet_3d.4x4.bf16.pb"
    made = REAL / "npz" / "layout" / "xla" / "default" / "valid" / "unet_3d.4x4.bf16.npz"
    if not (raw.exists() and made.exists()):
        pytest.skip(f"no {raw}: set TPUGRAPHS_DIR")
    again = tmp_path / "unet.npz"
    save_npz(again, **read_layout_pb(raw))
    model = world[0] / "models" / "layout_xla_random" / "rank_pairwise"
    (a,), (b,) = (rank.rank(path, model, "layout:xla:default") for path in (raw, again))
    np.testing.assert_array_equal(a.score, b.score)
    first, second = (read_graph(GraphFile("layout:xla:default", "", "", p)) for p in (raw, made))
    for name in ("node_feat", "opcode", "edges", "config_nodes"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert graph_statistics(first) == graph_statistics(second)


def test_every_kernel_of_a_raw_tile_file_is_ranked(run):
    raw = REAL / "pb" / "tile" / "op_tuning_data.pb"
    if not raw.exists():
        pytest.skip(f"no {raw}: set TPUGRAPHS_DIR")
    _, out, _ = run(raw, "--format", "json")
    found = json.loads(out)
    kernels = read_tile_pb(raw)
    assert [f["file"] for f in found] == [f"{raw}#{i}" for i in range(len(kernels))]
    assert {f["collection"] for f in found} == {"tile:xla"}
    for ranked, kernel in zip(found, kernels):
        assert len(ranked["ranking"]) == len(kernel["config_runtime"])
        assert ranked["default_config"] is not None
