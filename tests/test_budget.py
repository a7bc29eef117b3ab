"""What the kernel's job leaves out when time or memory run out: with a clock and a memory that the
tests turn themselves."""

import csv

import numpy as np
import pytest
from kernel_runs import check_rows

from utils import kernel_job, kernel_learn, metrics, synthetic
from utils.budget import BYTES_A_ROW, MARGIN, SECONDS_A_FIT, SECONDS_A_ROW, Budget, Size, size_of
from utils.coding import read_graph
from utils.dataset import index
from utils.files import save_npz
from utils.layout_rows import byte_count

COLLECTIONS = ("layout:nlp:random", "tile:xla")
GRAPHS = {"train": 4, "valid": 2, "test": 2}
MB = 2**20


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return index(synthetic.write_data(folder, 0, GRAPHS, 150, 3, collections=COLLECTIONS))


@pytest.fixture
def slow(monkeypatch):
    """A clock that every graph that is described moves by two seconds, 80 times the guess."""
    clock = Clock()

    def describe(file, reducer):
        clock.now += 2.0
        return kernel_learn_describe(file, reducer)

    kernel_learn_describe = kernel_learn.describe
    monkeypatch.setattr(kernel_learn, "describe", describe)
    monkeypatch.setattr(kernel_job, "describe", describe)
    return clock


def rank(files, path, budget):
    """Rows of the submission and the results."""
    results = kernel_job.rank_all(files, path, budget, threads=1)
    with open(path, newline="") as stream:
        rows = {row["ID"]: row["TopConfigs"] for row in csv.DictReader(stream)}
    check_rows(rows, {f.id: size_of(f).configs for f in files if f.split == "test"})
    return rows, results


def test_with_enough_of_both_nothing_is_left_out(files, tmp_path, slow):
    budget = Budget(1000, 4096 * MB, clock=slow, resident_mb=lambda: 100.0)
    _, results = rank(files, tmp_path / "s.csv", budget)
    assert budget.left_out == []
    assert [(r.trained_on, r.graphs) for r in results] == [(4, 2), (4, 2)]


def test_little_time_leaves_out_training_before_anything_else(files, tmp_path, slow):
    budget = Budget(28, 4096 * MB, clock=slow, resident_mb=lambda: 100.0)
    _, results = rank(files, tmp_path / "s.csv", budget)
    assert budget.left() >= 0
    assert 0 < sum(result.trained_on for result in results) < 8
    assert any("trained on" in text and "of 4 graphs" in text for text in budget.left_out)
    assert not [text for text in budget.left_out if "test graphs" in text]


def test_no_time_at_all_still_ranks_every_test_graph(files, tmp_path, slow):
    begin = slow.now
    budget = Budget(0.0, 4096 * MB, clock=slow, resident_mb=lambda: 100.0)
    rows, results = rank(files, tmp_path / "s.csv", budget)
    assert slow.now == begin
    assert rows[next(f.id for f in files if f.tile and f.split == "test")] == "0;1;2;3;4"
    assert [r.chosen for r in results] == ["byte_count"] * 2
    assert sum("2 of 2 test graphs in the order of its file" in t for t in budget.left_out) == 2


def test_in_haste_the_byte_count_ranks(files):
    file = next(f for f in files if not f.tile and f.split == "test")
    size = size_of(file)
    budget = Budget(0.0, 4096 * MB, clock=Clock(), resident_mb=lambda: 100.0)
    budget.seconds = 0.7 * budget.needs([size])
    order = kernel_job.rank_tests([file], {file: size}, None, None, budget, [])
    np.testing.assert_array_equal(order[file], metrics.ranking(byte_count(read_graph(file))))
    assert budget.left_out == [f"{file.collection}: 1 of 1 test graphs by its byte count"]


def test_damaged_files_are_named_and_the_rest_goes_on(tmp_path):
    graphs = {"valid": 3, "test": 2}  # without train, valid is trained on
    data = synthetic.write_data(tmp_path / "data", 0, graphs, 40, 3, collections=("tile:xla",))
    damaged = [index(data)[0], index(data)[-1]]
    for file in damaged:
        with np.load(file.path) as arrays:
            broken = dict(arrays)
        broken["node_feat"] = np.full_like(broken["node_feat"], np.nan)
        save_npz(file.path, **broken)
    budget = Budget(1000, 4096 * MB)
    rows, (result,) = rank(index(data), tmp_path / "s.csv", budget)
    assert (result.trained_on, result.graphs, result.chosen) == (2, 0, "rank_pairwise")
    assert [text.split(": ")[0] for text in budget.left_out] == [str(f.path) for f in damaged]
    assert rows[damaged[1].id] == "0;1;2;3;4"


def test_little_memory_means_fewer_rows_and_features_in_parts(tmp_path, slow):
    graphs = {"train": 2, "valid": 1, "test": 1}
    data = synthetic.write_data(tmp_path / "data", 0, graphs, 400, 3, collections=COLLECTIONS[:1])
    files = index(data)
    budget = Budget(1000, 1000 * MB, clock=slow, resident_mb=lambda: 997.0)
    _, results = rank(files, tmp_path / "s.csv", budget)
    assert any("features made in 2 parts" in text for text in budget.left_out)
    assert any("configurations of a graph at most" in text for text in budget.left_out)
    assert 0 < results[0].rows <= 0.6 * 3 * MB / BYTES_A_ROW
    assert results[0].scores["rank_pairwise"] > 0.3


def test_parts_hold_every_configuration_once_with_the_same_columns(files):
    file = next(f for f in files if not f.tile)
    reducer = kernel_learn.fit_vectors(
        [file], {file: size_of(file)}, Budget(100, 4096 * MB, clock=Clock()), 0
    )
    described = kernel_learn.describe(file, reducer)
    wide, narrow = (Budget(9, 1000 * MB, resident_mb=lambda free=free: 1000.0 - free)
                    for free in (900, 1))
    ((_, whole),) = kernel_learn.tables(described, wide)
    parts = list(kernel_learn.tables(described, narrow))
    assert len(parts) == 2
    seen = np.concatenate([np.arange(len(whole))[chosen] for chosen, _ in parts])
    assert sorted(seen) == list(range(len(whole)))
    for chosen, table in parts:
        assert table.columns == whole.columns
        for name in ("target", "count", "node_byte_count", "copy_bytes", "node_odd_count"):
            np.testing.assert_allclose(table[name], whole[name].to_numpy()[chosen], rtol=1e-6)


def test_sizes_and_guesses(files):
    file = next(f for f in files if not f.tile)
    with np.load(file.path) as arrays:
        shape, nodes = arrays["node_config_feat"].shape, len(arrays["node_opcode"])
    assert size_of(file) == Size(nodes, shape[0], shape[1])
    assert size_of(next(f for f in files if f.tile)).width == 0
    clock = Clock()
    budget = Budget(60, 1000 * MB, clock=clock, resident_mb=lambda: 400.0)
    with budget.timed(1.0):
        clock.now += 5.0
    assert budget.left() == 55 and budget.free() == 600 * MB
    assert budget.pace == (1 + 5) / (1 + 1)
    size = Size(1000, 0, 0)
    assert budget.needs([size, size]) == pytest.approx(MARGIN * 2 * 3 * size.seconds)
    seconds = MARGIN * budget.pace * (SECONDS_A_FIT + 1000 * SECONDS_A_ROW)
    assert budget.rows(seconds + 1e-6) == 1000
    assert budget.rows(1e9) == int(0.6 * 600 * MB / BYTES_A_ROW)
    assert Budget(1, 8.0, resident_mb=lambda: None).free() == 4.0
