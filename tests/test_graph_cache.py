"""Graphs come back from the cache as they were read, and only while the data file is the same."""

import os
from dataclasses import replace

import numpy as np
import pytest

from utils import graph_cache
from utils.coding import Graph, config_sum, deduplicate, read_graph
from utils.dataset import DataError, index
from utils.graph_cache import cache_bytes, cache_folder, cached_graph
from utils.notebook import open_run
from utils.synthetic import write_data


@pytest.fixture
def run(tmp_path):
    data = write_data(tmp_path / "data", graphs={"train": 1, "valid": 0, "test": 1}, configs=40)
    return open_run(tmp_path, str(data), str(tmp_path / "out"))


def same(found: Graph, wanted: Graph) -> bool:
    for name in Graph.__dataclass_fields__:
        a, b = getattr(found, name), getattr(wanted, name)
        if isinstance(b, np.ndarray):
            if not (a.dtype == b.dtype and a.shape == b.shape and (a == b).all()):
                return False
        elif a != b:
            return False
    return True


def not_read(monkeypatch):
    monkeypatch.setattr(graph_cache, "read_graph", lambda file: pytest.fail(f"{file} is read"))


def test_every_graph_comes_back_equal_and_no_file_is_read_again(run, monkeypatch):
    wanted = [read_graph(file) for file in run.files]
    assert all(same(cached_graph(run, file), w) for file, w in zip(run.files, wanted))
    not_read(monkeypatch)
    found = [cached_graph(run, file) for file in run.files]
    assert all(map(same, found, wanted))
    layout = [graph for graph in found if graph.codes is not None]
    assert layout and all(isinstance(graph.codes.base, np.memmap) for graph in layout)
    assert all(graph.codes.T.flags.c_contiguous for graph in layout)  # sums go column by column
    table = np.arange(len(layout[0].row_layout), dtype=float)
    np.testing.assert_array_equal(
        config_sum(layout[0], table), config_sum(read_graph(layout[0].file), table)
    )
    assert same(deduplicate(layout[0])[0], deduplicate(read_graph(layout[0].file))[0])
    files = [path for path in cache_folder(run.out).rglob("*") if path.is_file()]
    assert cache_bytes(run.out) == sum(path.stat().st_size for path in files) > 0


def test_contents_count_and_not_the_time_of_the_file(run, monkeypatch):
    file, other = (f for f in run.files if f.collection == "layout:xla:random")
    before = cached_graph(run, file)
    os.utime(file.path, (0, 0))
    with monkeypatch.context() as patch:
        not_read(patch)
        assert same(cached_graph(run, file), before)
    file.path.write_bytes(other.path.read_bytes())
    assert same(cached_graph(run, file), replace(read_graph(other), file=file))


@pytest.mark.parametrize("name", ["{}.npz", "{}.npy"])
@pytest.mark.parametrize("damage", ["cut", "empty", "gone"])
def test_a_damaged_copy_is_made_again(run, name, damage):
    file = run.files[0]
    wanted = cached_graph(run, file)
    (copy,) = cache_folder(run.out).rglob(name.format(file.name))
    if damage == "gone":
        copy.unlink()
    else:
        copy.write_bytes(copy.read_bytes()[: -100 if damage == "cut" else 0])
    assert same(cached_graph(run, file), wanted)
    assert same(cached_graph(run, file), wanted)


def test_nothing_is_kept_without_a_cache(run):
    for file in run.files:
        assert same(cached_graph(replace(run, cache=False), file), read_graph(file))
    assert not cache_folder(run.out).exists() and cache_bytes(run.out) == 0


def test_a_file_that_went_bad_is_an_error_in_spite_of_its_copy(run):
    file = run.files[0]
    cached_graph(run, file)
    file.path.write_bytes(file.path.read_bytes()[:500])
    with pytest.raises(DataError, match=file.path.name):
        cached_graph(run, file)


def test_names_below_one_folder_do_not_meet(run):
    assert len({f.collection for f in index(run.data)}) == 5
    for file in run.files:
        cached_graph(run, file)
    assert len(list(cache_folder(run.out).rglob("*.npz"))) == len(run.files)
