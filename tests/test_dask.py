"""Work shared with a Dask cluster of two processes: the same tables, also when one is killed on

the way; training that is as good; and one clear line where it can't work.
"""

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from toy_tables import toy_run

from utils import cluster, dask_train, eda, ranking, study, training
from utils.cluster import ClusterError, each_graph
from utils.dataset import DataError
from utils.feature_tables import write_features
from utils.metrics import kendall_tau
from utils.notebook import open_run, table_path
from utils.stat_tables import write_graph_statistics, write_statistics
from utils.synthetic import write_data
from utils.vector_tables import get_reducer, write_vectors

distributed = pytest.importorskip("distributed", reason="needs requirements-dask.txt")


@pytest.fixture(scope="module")
def address():
    two = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    with two:
        yield two.scheduler_address
        for client in list(distributed.Client._instances):
            client.close()  # else it looks for the scheduler


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    some = ("layout:nlp:default", "tile:xla")
    folder = tmp_path_factory.mktemp("data")
    return write_data(folder, graphs={"train": 2, "valid": 1, "test": 1}, configs=30,
                      collections=some)


@pytest.fixture(scope="module")
def toy(tmp_path_factory, address):
    """A run on the cluster with made-up features, and the fit of rank_pairwise on six graphs."""
    run = toy_run(tmp_path_factory.mktemp("toy"), ("tile:xla",))
    files = tuple(f for f in run.files if f.split == "train")
    fit = study.Fit("tile:xla", "rank_pairwise", 0, 0, None, files, {})
    return replace(run, dask=address), fit


def make_tables(run):
    """What notebooks 01 to 04 write."""
    eda.describe_run(run)
    write_statistics(run)
    write_vectors(run, get_reducer(run, 4, 0))
    assert write_features(run) == len(run.files)


def test_tables_are_those_of_a_run_without_a_cluster(data, address, tmp_path):
    alone = open_run(tmp_path, str(data), "alone")
    shared = open_run(tmp_path, str(data), "shared", dask=address)
    make_tables(alone)
    make_tables(shared)
    paths = [path.relative_to(alone.out) for path in alone.out.rglob("*.parquet")]
    assert len(paths) == 4 + 7 * len(alone.files)
    for path in paths:
        one, other = pl.read_parquet(alone.out / path), pl.read_parquet(shared.out / path)
        assert_frame_equal(one, other, check_exact=True)
    assert write_features(shared) == 0  # and it is known that they are there
    assert not list(shared.out.glob(".seen-*"))


def dies_once(run, file, victim, flag):
    """Half of a graph's work, then the death of the process; all of it the next time."""
    if file == victim and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    write_graph_statistics(run, file)
    return file.name


def test_the_work_of_a_killed_worker_is_done_again(data, address, tmp_path):
    alone = open_run(tmp_path, str(data), "alone")
    shared = open_run(tmp_path, str(data), "shared", dask=address)
    flag = tmp_path / "killed"
    work = partial(dies_once, victim=shared.files[4], flag=flag)
    done = each_graph(shared, work, [(file,) for file in shared.files], "graph statistics")
    assert flag.exists()
    assert done == [file.name for file in shared.files]
    write_statistics(alone)
    for file in alone.files:
        for kind in ("graph_stats", "node_stats"):
            one, other = (pl.read_parquet(table_path(run, kind, file)) for run in (alone, shared))
            assert_frame_equal(one, other, check_exact=True)


def test_an_error_names_its_file_when_all_others_are_done(data, address, tmp_path):
    run = open_run(tmp_path, str(data), "out", dask=address)
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"not a zip file")
    jobs = [(file, 0) for file in run.files]
    jobs[0] = (replace(run.files[0], path=broken), 0)
    with pytest.raises(DataError, match=f"^{broken}: ") as caught:
        each_graph(run, eda.write_description, jobs, "describe graphs")
    assert "\n" not in str(caught.value)
    there = [table_path(run, "eda", file).exists() for file in run.files]
    assert there == [False] + [True] * (len(there) - 1)


def slow(run, file, number):
    time.sleep(0.1)
    (run.out / f"{number}.done").touch()


def test_an_interrupt_takes_back_what_has_not_begun(data, address, tmp_path, monkeypatch):
    def interrupted(iterable, **options):
        yield next(iter(iterable))
        raise KeyboardInterrupt

    run = open_run(tmp_path, str(data), "out", dask=address)
    monkeypatch.setattr(cluster, "progress", interrupted)
    with pytest.raises(KeyboardInterrupt):
        each_graph(run, slow, [(run.files[0], i) for i in range(80)], "slow")
    client = cluster.connect(run.dask, run.out, run.data)
    while any(client.processing().values()):
        time.sleep(0.1)
    assert 1 <= len(list(run.out.glob("*.done"))) < 80


def taus(run, ranker):
    tables = [training.read_features(run, f) for f in run.files if f.split == "valid"]
    return [
        kendall_tau(t["target"].to_numpy(), ranking.predict(ranker, *training.features_of(t)))
        for t in tables
    ]


def trees(ranker):
    return ranker.estimator.get_dump(with_stats=True)


def test_a_ranker_trained_there_is_as_good_and_the_same_every_time(toy):
    run, fit = toy
    alone = training.fit_ranker(replace(run, dask=""), fit)
    shared = training.fit_ranker(run, fit)
    assert shared.columns == alone.columns
    assert len(trees(shared)) == ranking.RANK_TREES
    # Bins and draws are those of two workers: other trees, the same quality.
    assert trees(shared) != trees(alone)
    np.testing.assert_allclose(np.mean(taus(run, shared)), np.mean(taus(run, alone)), atol=0.1)
    assert trees(training.fit_ranker(run, fit)) == trees(shared)


def test_one_worker_trains_the_trees_of_a_fit_without_a_cluster(toy):
    run, fit = toy
    one = replace(fit, train=fit.train[:1])  # a graph is never divided
    alone = training.fit_ranker(replace(run, dask=""), one, max_configs=30, threads=1)
    shared = training.fit_ranker(run, one, max_configs=30)
    assert shared.columns == alone.columns
    assert trees(shared) == trees(alone)


def test_training_starts_again_when_a_worker_is_killed(toy, monkeypatch):
    run, fit = toy
    expected = trees(training.fit_ranker(run, fit))
    client = cluster.connect(run.dask, run.out, run.data)
    victim = next(iter(client.run(os.getpid).values()))
    usual = ranking.RANK_TREES

    def kill():
        while not all(any("fn-" in str(key) for key in keys) for keys in
                      client.processing().values()):
            time.sleep(0.05)
        time.sleep(0.5)  # now both are in the middle of it
        monkeypatch.setattr(ranking, "RANK_TREES", usual)
        os.kill(victim, signal.SIGKILL)

    monkeypatch.setattr(ranking, "RANK_TREES", 1_000_000)  # more than it ever gets to
    killer = threading.Thread(target=kill)
    killer.start()
    again = trees(training.fit_ranker(run, fit))
    killer.join()
    assert len(again) == usual
    assert victim not in client.run(os.getpid).values()
    if len(client.nthreads()) == 2:  # it came back in time
        assert again == expected


def test_graphs_are_shared_out_by_rows_and_stay_whole():
    assert [s.tolist() for s in dask_train.shares_of([10] * 4, 2)] == [[0, 1], [2, 3]]
    assert [s.tolist() for s in dask_train.shares_of([90, 10, 10, 10], 2)] == [[0], [1, 2, 3]]
    assert [s.tolist() for s in dask_train.shares_of([5], 8)] == [[0]]
    together = np.concatenate(dask_train.shares_of([3, 1, 4, 1, 5, 9, 2, 6], 3))
    assert together.tolist() == list(range(8))


@pytest.mark.parametrize("wrong", ["tcp://127.0.0.1:1", "nowhere.invalid:8786", "no address",
                                   "ftp://127.0.0.1:8786"])
def test_a_wrong_address_is_one_line(data, tmp_path, wrong, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", "1 s")
    with pytest.raises(ClusterError) as caught:
        open_run(tmp_path, str(data), "out", dask=wrong)
    assert str(caught.value) == f"{wrong}: no Dask scheduler answers there"


def test_a_scheduler_without_workers(data, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", "1 s")
    empty = distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0")
    with empty:
        with pytest.raises(ClusterError, match="this Dask scheduler has no workers$"):
            open_run(tmp_path, str(data), "out", dask=empty.scheduler_address)


def test_dask_that_is_missing_says_how_to_install_it(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ClusterError, match="pip install -r requirements-dask.txt$"):
        open_run(tmp_path, str(data), "out", dask="tcp://127.0.0.1:1")


def test_workers_have_to_share_folders_code_and_packages(data, address, tmp_path, monkeypatch):
    def refusal():
        with pytest.raises(ClusterError, match="^worker tcp://") as caught:
            open_run(tmp_path, str(data), "out", dask=address)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "_leave_token", lambda out: out / "only-here")
        assert f"does not see {tmp_path / 'out'}: all machines have to share it" in refusal()
    own = cluster.made_with()
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "made_with", lambda: own | {"numpy": "1.0"})
        assert f"has numpy {own['numpy']}, this machine 1.0" in refusal()
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "made_with", lambda: own | {"code": "older"})
        assert "(1 of 2 that can't help): runs other code than this machine" in refusal()
    with monkeypatch.context() as patch:
        lost = ModuleNotFoundError("No module named 'utils'")
        patch.setattr(distributed.Client, "run_on_scheduler", Mock(side_effect=lost))
        with pytest.raises(ClusterError, match="^scheduler tcp://.*: start it with the repository"):
            open_run(tmp_path, str(data), "out", dask=address)
    elsewhere = Path("/nowhere/data")
    token = tmp_path / "token"
    token.touch()
    assert cluster.problem_here(token, elsewhere, own).startswith(f"does not see {elsewhere}")
    assert cluster.problem_here(token, data, own) == ""
