"""The budget on paper: the release's totals, the law that is fitted, and the table."""

import numpy as np
import pytest

from utils import paper_budget
from utils.notebook import open_run
from utils.options import ROOT
from utils.paper_budget import Step, growth, on_paper, table, totals, training_seconds
from utils.schema import TILE_COLLECTION


def test_the_totals_are_those_of_the_release():
    sizes = totals()
    layouts = [size for name, size in sizes.items() if name != TILE_COLLECTION]
    assert sum(size[0] for size in layouts) == 639 and sizes[TILE_COLLECTION][0] == 7229
    configs = {name: size[2] for name, size in sizes.items()}
    assert configs["layout:nlp:random"] == 244 * 66_000
    # Labelled graphs expand to 400 GB; all graphs to as much more as there are more of them.
    known = sum(g * c for _, g, _, c in list(paper_budget.RELEASE.values())[:4])
    codes = sum(size[3] for size in layouts)
    expected = 400e9 / 72 * sum(size[2] for size in layouts) / known
    assert codes == pytest.approx(expected)
    assert sizes[TILE_COLLECTION][3] == 0


def test_a_law_without_noise_is_found_again_and_nothing_is_negative():
    rng = np.random.default_rng(0)
    sizes = np.column_stack([np.ones(12), *rng.uniform(1, [9e3, 2e4, 3e6], (12, 3)).T])
    law = np.array([0.5, 2e-4, 0.0, 3e-7])
    np.testing.assert_allclose(growth(sizes, sizes @ law), law, rtol=1e-6, atol=1e-12)
    assert (growth(sizes, np.maximum(5.0 - sizes[:, 1] * 1e-3, 0.1)) >= 0).all()


def test_the_table_shares_steps_by_graphs_and_never_ends_before_the_largest_one():
    steps = [Step("01: a", 36_000, 60), Step("02: b", 3_600, 720)]
    steps += [Step("06: c", 360, 1)]
    lines = table(steps, training=7_200, scoring=2_052)
    cells = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0][1:] == ["2 cores", "4 cores", "16 cores", "10 machines of 4 cores",
                            "100 machines of 4 cores"]
    assert cells[2] == ["01: a", "5.00", "2.50", "0.62", "0.25", "0.03"]
    assert cells[3] == ["02: b", "0.50", "0.25", "0.20", "0.20", "0.20"]
    assert cells[4][1:] == ["0.10"] * 5  # on one machine
    assert cells[5][1:] == ["2.00"] * 5 and cells[6][1:] == ["0.57"] * 5
    assert cells[7][1:] == ["8.2", "5.4", "3.5", "3.1", "2.9"]


def test_training_takes_at_most_so_many_configurations_of_a_graph():
    training, scoring = training_seconds({"row": 1.0, "graph": 0.0, "score": 0.0})
    known = 68 + 76 + 218 + 227
    assert training == paper_budget.FITS * (2000 * known + 6385 * 1842) and scoring == 0
    training, _ = training_seconds({"row": 0.0, "graph": 1.0, "score": 0.0})
    assert training == paper_budget.FITS * known


def test_every_step_is_measured_on_every_graph(tmp_path):
    sizes, kernels = ((60, 20, 5), (60, 40, 5), (120, 20, 10)), (8, 16)
    data = paper_budget.write_files(tmp_path / "data", sizes, kernels)
    run = open_run(ROOT, str(data), str(tmp_path / "out"))
    assert len(run.files) == 2 * 3 + 4 * 2
    seen = paper_budget.measure_steps(run)
    assert seen["size"]["layout"].shape == (6, 4) and seen["size"]["tile"].shape == (8, 4)
    assert sorted(seen["size"]["layout"][:, 2]) == [20] * 4 + [40] * 2
    assert set(seen["size"]["tile"][:, 2]) == {8, 16} and (seen["size"]["tile"][:, 3] == 0).all()
    steps = on_paper(seen)
    assert [step.name[:2] for step in steps] == ["01", "02", "03", "04", "06"]
    for step in steps:  # there are more than 7,000 graphs, and what was seen took some time
        slowest = seen[step.name]["layout"].max()
        assert step.seconds > 639 / 6 * slowest / 10
    each = paper_budget.measure_training(run, 2)
    assert min(each.values()) > 0
    disk = paper_budget.bytes_of(run, "cache")
    codes = seen["size"]["layout"][:, 3]
    assert (disk > codes).all()  # a byte a code, and the graph
