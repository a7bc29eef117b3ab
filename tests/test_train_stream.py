"""Training from tables on disk: as good as in memory, the same every time, within the bound."""

from dataclasses import replace

import numpy as np
import pytest
from toy_tables import toy_run

from utils import ranking, study, train_stream, training
from utils.dataset import DataError
from utils.metrics import kendall_tau


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """(run, fit of rank_pairwise on the train split of tile:xla)."""
    run = toy_run(tmp_path_factory.mktemp("toy"), ("tile:xla",))
    files = tuple(f for f in run.files if f.split == "train")
    return run, study.Fit("tile:xla", "rank_pairwise", 0, 0, None, files, {})


def scores(run, ranker):
    files = [f for f in run.files if f.split == "valid"]
    tables = [training.read_features(run, file) for file in files]
    return [(t["target"].to_numpy(), ranking.predict(ranker, *training.features_of(t)))
            for t in tables]


def taus(run, ranker):
    return np.array([kendall_tau(target, score) for target, score in scores(run, ranker)])


@pytest.mark.parametrize("memory_mb", [0.01, 0.0])
def test_a_stream_of_tables_teaches_as_much_as_all_at_once(toy, memory_mb):
    run, fit = toy
    table = training.read_features(run, fit.train[0])
    rows, columns = len(table) * len(fit.train), len(table.columns)
    assert train_stream.memory_mb(rows, columns) > memory_mb  # so it is streamed
    whole = training.fit_ranker(run, fit)
    stream = training.fit_ranker(run, fit, memory_mb=memory_mb)
    again = training.fit_ranker(run, fit, memory_mb=memory_mb)
    assert stream.columns == whole.columns
    np.testing.assert_allclose(taus(run, stream).mean(), taus(run, whole).mean(), atol=0.1)
    for (_, a), (_, b) in zip(scores(run, stream), scores(run, again)):
        np.testing.assert_array_equal(a, b)
    assert not list((run.out / "cache").glob("*"))  # the files of the fit are gone


def test_each_graph_is_a_query_of_its_own(toy):
    run, fit = toy
    names = training.features_of(training.read_features(run, fit.train[0]))[1]
    parts = [lambda f=f: training._part(run, f, names, 9, 0) for f in fit.train]
    tables = train_stream._Tables(parts, np.arange(len(names)), None)
    data = train_stream.xgboost.QuantileDMatrix(tables, max_bin=8)
    assert data.get_group().tolist() == [9] * len(fit.train)
    assert (data.num_row(), data.num_col()) == (9 * len(fit.train), len(names))
    assert data.get_label().reshape(-1, 9).max(1).tolist() == [ranking.TOP_LABEL] * len(fit.train)


def test_what_cannot_be_streamed_takes_fewer_configurations(toy, monkeypatch):
    run, fit = toy
    fit = replace(fit, model="hist_gbrt")
    table = training.read_features(run, fit.train[0])
    most = train_stream.memory_mb(5 * len(fit.train), len(table.columns)) + 1e-6
    seen = []
    monkeypatch.setattr(ranking, "fit", lambda *args, **_: seen.append(np.bincount(args[4])))
    training.fit_ranker(run, fit, memory_mb=most)
    assert seen[0].tolist() == [5] * len(fit.train)


def test_nothing_to_learn_from_is_said():
    flat = [lambda: (np.ones((3, 2), np.float32), np.arange(3.0))]
    with pytest.raises(DataError, match="no feature column that varies"):
        train_stream.fit("rank_pairwise", flat, ("a", "b"))
    unlabelled = [lambda: (np.eye(3, dtype=np.float32), np.full(3, np.nan))]
    with pytest.raises(DataError, match="without a runtime"):
        train_stream.fit("rank_pairwise", unlabelled, ("a", "b", "c"))
