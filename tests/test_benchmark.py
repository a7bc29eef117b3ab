import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from utils import (
    benchmark, benchmark_graphs, benchmark_worker, cost_graphs, cost_study, cost_tables,
)  # fmt: skip
from utils.benchmark_graphs import write_graph
from utils.benchmark_worker import Worker, make_scorer
from utils.cost_rows import terms, without
from utils.cost_tables import LINEAR
from utils.dataset import DataError, GraphFile, check_files, decode, read_graph
from utils.files import save_npz
from utils.layout_rows import byte_count
from utils.synthetic import layout_graph

COLLECTION = "layout:nlp:random"


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """A run with a small saved model of cost tables."""
    folder = tmp_path_factory.mktemp("benchmark")
    arrays, _ = layout_graph(0, "nlp", "random", 3, 40, rounds=0)
    path = folder / "mlp.s0.npz"
    save_npz(path, **arrays)
    file = GraphFile(COLLECTION, "train", "mlp.s0", path, ours=True)
    graph = cost_graphs.prepare(file)
    rows = without(graph.rows, prefixes=("mp_",))
    chosen = terms(graph.graph, rows)
    model = cost_tables.fit([rows], [chosen], [graph.graph.target], LINEAR, threads=1, trees=5)
    cost_tables.save_model(model, folder / "models" / "layout_nlp_random" / "cost_tables")
    return folder



def test_a_generated_file_has_the_asked_size_and_reads_well(tmp_path):
    file = write_graph(tmp_path, 300, 64, config_nodes=9)
    assert check_files([file]) == []
    graph = read_graph(file)
    assert abs(len(graph.opcode) - 300) <= 15 and graph.codes.shape == (64, 9)
    assert not graph.labelled and 1 < np.diff(graph.row_start).max() <= benchmark_graphs.DRAWN
    assert (np.diff(graph.codes, axis=0) != 0).any(0).all()  # every node chooses
    default = read_graph(write_graph(tmp_path, 300, 5))
    assert len(default.config_nodes) == len(default.opcode) // 14


def test_the_same_arguments_give_the_same_file_whatever_the_blocks(tmp_path, monkeypatch):
    whole = read_graph(write_graph(tmp_path / "a", 200, 50))
    monkeypatch.setattr(benchmark_graphs, "BLOCK", 3000)
    blocks = read_graph(write_graph(tmp_path / "b", 200, 50))
    np.testing.assert_array_equal(decode(whole), decode(blocks))
    other = read_graph(write_graph(tmp_path / "c", 200, 50, seed=1))
    assert other.codes.shape != whole.codes.shape or (decode(other) != decode(whole)).any()


def test_the_worker_scores_what_the_models_score(tmp_path, out):
    file = write_graph(tmp_path, 200, 50)
    graph = read_graph(file)
    floor = make_scorer("byte_count", out, out, 1, 0)
    assert (floor.score(floor.prepare(graph), None) == byte_count(graph)).all()
    stem = benchmark.saved_models(out, COLLECTION)["cost_tables"]
    tables = make_scorer("cost_tables", stem, out, 1, 0)
    found = tables.score(tables.prepare(graph), None)
    model, prepared = cost_tables.load_model(stem), cost_graphs.prepare(file)
    expected = cost_study.score(cost_study.FULL, model, prepared, threads=1)
    np.testing.assert_allclose(np.unique(found), np.unique(expected))
    worker = Worker(tables, file, seconds=1.0)
    reply = worker.file_pass()
    assert reply["scored"] == reply["configs"] == 50 and worker.memory_pass()["scored"] == 50
    with pytest.raises(ValueError, match="no model 'forest'"):
        make_scorer("forest", stem, out, 1, 0)


def network(out: Path, file) -> Path:
    """An untrained network of the right widths, saved."""
    pytest.importorskip("torch_geometric", reason="needs requirements-gnn.txt")
    from utils import gnn
    from utils.gnn_graphs import describe
    from utils.gnn_network import Network, Settings

    settings = Settings(hidden=8, layers=1)
    graph = describe(read_graph(file), False, 1)
    made = Network(settings, graph.node.shape[1], graph.row.shape[1], tile=False)
    stem = out / "models" / "layout_nlp_random" / "gnn"
    gnn.save_model(gnn.Trained(settings, made), stem)
    return stem


def test_a_network_scores_as_many_as_there_is_time_for(tmp_path, out):
    file = write_graph(tmp_path, 200, 50)
    stem = network(tmp_path, file)
    scorer = make_scorer("gnn", stem, out, 1, 0)
    ready = scorer.prepare(read_graph(file))
    whole = scorer.score(ready, None)
    np.testing.assert_allclose(scorer.score(ready, 7), whole[:7], atol=1e-6)
    assert Worker(scorer, file, seconds=100.0).file_pass()["scored"] == 50
    assert Worker(scorer, file, seconds=0.0).file_pass()["scored"] == 1
    found = benchmark_worker.best_batch(stem, file, 1)
    assert found["speeds"].keys() == {1, 2, 4, 8, 16, 32}  # of 50 configurations
    assert found["batch"] in found["speeds"]


def test_every_model_is_measured_in_its_own_process(tmp_path, out):
    file = write_graph(tmp_path, 200, 50)
    stems = benchmark.saved_models(out, COLLECTION)
    assert list(stems) == ["byte_count", "cost_tables"]
    rows = benchmark.measure(file, stems, out, threads=1, repeats=2)
    assert [row["model"] for row in rows] == list(stems)
    for row in rows:
        assert row["configs"] == row["scored"] == 50 and row["batch"] is None
        assert len(row["memory_s"]) == len(row["file_s"]) == 2
        assert min(row["file_s"]) > max(row["read_s"]) * 0.5 > 0
        assert row["peak_mb"] is None or row["peak_mb"] >= 0
    assert rows[0]["disk_mb"] == 0 < rows[1]["disk_mb"] < 1


def test_a_process_that_ends_is_named(tmp_path, out):
    file = write_graph(tmp_path, 200, 5)
    with pytest.raises(DataError, match="cost_tables: its process ended"):
        benchmark.measure(file, {"cost_tables": tmp_path / "nothing"}, out, threads=1)
    with pytest.raises(DataError, match="no saved model of tile:xla"):
        benchmark.run(out, "tile:xla")


def table(**columns) -> pl.DataFrame:
    rows = {
        "model": ["cost_tables", "gnn"], "nodes": [2000] * 2, "configs": [100] * 2,
        "memory_s": [[1.0, 2.0, 1.0], [50.0, 60.0, 70.0]],
        "file_s": [[4.0, 4.0, 4.0], [60.0, 80.0, 90.0]], "peak_mb": [30.0, 300.0],
    }  # fmt: skip
    return pl.DataFrame(rows | columns, strict=False)


def test_ratios_are_medians_of_pairs():
    (row,) = benchmark.ratios(table()).to_dicts()
    assert row == {
        "nodes": 2000, "configs": 100, "model": "cost_tables", "base": "gnn",
        "from_memory": 50.0, "from_file": 20.0, "memory": 0.1,
    }  # fmt: skip
    assert benchmark.sentences(table()) == [
        "2,000 nodes, 100 configurations: cost_tables scores 50.0 times as many a second as gnn "
        "from memory, 20.0 times from a file, with 0.10 of its memory"
    ]
    (unknown,) = benchmark.ratios(table(peak_mb=[None, None])).to_dicts()
    assert unknown["memory"] is None
    variant = table(model=["cost_tables", "gnn/extra"])
    assert benchmark.ratios(variant)["base"].to_list() == ["gnn/extra"]
    both = benchmark.ratios(table(model=["gnn", "gnn/extra"]))
    assert both.select("model", "base").rows() == [("gnn", "gnn/extra")]
    assert len(benchmark.ratios(table()[:1])) == 0
    assert "nothing to compare with" in benchmark.sentences(table()[:1])[0]


def test_sizes_are_read_or_refused():
    assert benchmark.parse_sizes("2000x10000, 43615x1000") == [(2000, 10000), (43615, 1000)]
    for text in ("", "2000", "2000x1", "axb", "1x2x3"):
        with pytest.raises(ValueError):
            benchmark.parse_sizes(text)


def test_saved_models_are_those_with_files(tmp_path):
    folder = tmp_path / "models" / "layout_nlp_random"
    folder.mkdir(parents=True)
    (folder / "gnn__extra.json").write_text(json.dumps({}))
    assert list(benchmark.saved_models(tmp_path, COLLECTION)) == ["byte_count", "gnn/extra"]
