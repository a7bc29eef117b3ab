"""Feature tables as files: shape, labels, and that finished graphs are not made again."""

import numpy as np
import polars as pl
import pytest

from utils.dataset import index, read_graph
from utils.feature_tables import column_correlations, write_features
from utils.files import write_parquet
from utils.metrics import kendall_tau
from utils.notebook import open_run, table_path
from utils.synthetic import write_data


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    data = write_data(folder / "data", graphs={"train": 2, "valid": 0, "test": 1}, configs=30)
    run = open_run(folder, str(data), str(folder / "out"))
    write_inputs(run)
    assert write_features(run) == len(run.files) == 15
    return run


def write_inputs(run, depth=1.0):
    keys = [{"collection": f.collection, "split": f.split, "name": f.name} for f in run.files]
    tables = run.out / "tables"
    statistics = pl.DataFrame([k | {"depth": depth} for k in keys])
    write_parquet(tables / "graph_stats.parquet", statistics)
    pooled = pl.DataFrame([k | {"mp_mean_0": 0.5} for k in keys])
    write_parquet(tables / "message_passing.parquet", pooled)
    for file in run.files:
        nodes = len(read_graph(file).opcode)
        vectors = {"mp_0": np.linspace(0, 1, nodes, dtype=np.float32)}
        write_parquet(table_path(run, "node_vectors", file), pl.DataFrame(vectors))


def tables(run, file):
    return [pl.read_parquet(table_path(run, kind, file)) for kind in ("features", "rows")]


def test_tables(run):
    schemas = {"layout": set(), "tile": set()}
    for file in run.files:
        features, rows = tables(run, file)
        graph = read_graph(file)
        assert len(rows) == graph.configs
        assert features["count"].sum() == graph.configs
        assert (np.bincount(rows["distinct"]) == features["count"].to_numpy()).all()
        assert rows.schema == {"distinct": pl.Int32, "target": pl.Float64}
        if file.split == "test":
            assert rows["target"].is_null().all() and features["target"].is_null().all()
        else:
            assert (rows["target"].to_numpy() == graph.target).all()
            one = features["count"].to_numpy() == 1
            first = np.flatnonzero(np.isin(rows["distinct"], np.flatnonzero(one)))
            assert (features["target"].to_numpy()[one] == graph.target[first]).all()
        kind = "tile" if file.tile else "layout"
        schemas[kind].add(tuple(features.schema.items()))
        assert features["stat_depth"].to_list() == [1.0] * len(features)
    assert all(len(found) == 1 for found in schemas.values())  # the same columns everywhere


def test_a_run_that_was_stopped_goes_on(run):
    lost, kept = (table_path(run, "features", file) for file in run.files[:2])
    before = lost.read_bytes(), kept.stat().st_mtime_ns
    lost.unlink()
    assert write_features(run) == 1
    assert (lost.read_bytes(), kept.stat().st_mtime_ns) == before
    assert write_features(run) == 0
    write_inputs(run, depth=2.0)  # other statistics: every table is made again
    assert write_features(run) == len(run.files)
    write_inputs(run)
    assert write_features(run) == len(run.files)


def test_a_missing_input_names_the_notebook_that_makes_it(run):
    path = run.out / "tables" / "message_passing.parquet"
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(FileNotFoundError, match="run notebook 03 first"):
        write_features(run)
    path.write_bytes(content)


def test_column_correlations(run):
    found = column_correlations(run, run.files)
    assert set(found["collection"]) == {f.collection for f in index(run.data)}
    assert found["rho"].abs().max() <= 1 + 1e-9
    assert not found["column"].is_in(["target", "count", "stat_depth"]).any()
    # in the generated layout data a slot that is not row-major costs its bytes
    layout = found.filter(pl.col("collection") == "layout:nlp:random")
    best = layout.group_by("column").agg(pl.col("rho").mean()).sort("rho").tail(10)
    assert "node_byte_count" in best["column"]


def test_the_byte_count_of_generated_graphs_ranks_them(run):
    file = next(f for f in run.files if f.collection == "layout:nlp:random" and f.split == "train")
    features, _ = tables(run, file)
    assert kendall_tau(features["target"].to_numpy(), features["node_byte_count"].to_numpy()) > 0.8
