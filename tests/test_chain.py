"""All notebooks of the main job on a tiny slice of the sample, against stored numbers.

After a change that is meant to change them, store the new ones and look at the difference:

    GOLDEN=write ./run_all.sh test tests/test_chain.py
"""

import csv
import json
import os
from pathlib import Path

import pytest
import tiny_data

from utils import options, runner
from utils.dataset import index
from utils.evaluate import read_metrics
from utils.files import write_json

GOLDEN = Path(__file__).parent / "data" / "golden_metrics.json"
KEY = ("collection", "model", "protocol", "fold_assignment", "seed")
SCORES = ("tau", "slowdown1", "slowdown5", "opa", "tile_score", "ceiling")
# Floors are plain sums. Trees may split near ties the other way on another processor.
TOLERANCE = {"floor": 1e-6, "trained": 0.03}
FLOORS = ("random", "config_frequency", "choice_frequency", "byte_count", "loop_bytes")
WRITTEN = ("submission.csv", "metrics.json", "report.md", "manifest.json")

pytestmark = pytest.mark.skipif(
    not list((options.ROOT / "notebooks").glob("09_*.ipynb")), reason="the chain is not complete"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, Path]:
    """(data folder, output folder) of one run with one thread."""
    folder = tmp_path_factory.mktemp("chain")
    data, out = tiny_data.build(folder / "data"), folder / "out"
    assert runner.main(["--data", str(data), "--out", str(out), "--jobs", "1"]) == 0
    return data, out


def scores(out: Path) -> list[dict]:
    """Identity and scores of every record of metrics.json, in a fixed order."""
    kept = [{k: record[k] for k in KEY + SCORES} for record in read_metrics(out / "metrics.json")]
    return sorted(kept, key=lambda record: str([record[k] for k in KEY]))


def test_metrics_equal_the_stored_ones(run):
    found = {"data": tiny_data.source(), "records": scores(run[1])}
    if os.environ.get("GOLDEN") == "write":
        write_json(GOLDEN, found)
    stored = json.loads(GOLDEN.read_text())
    assert stored["data"] == found["data"], "stored for other data: see this file's first lines"
    identities = [[[r[k] for k in KEY] for r in side["records"]] for side in (stored, found)]
    assert identities[0] == identities[1]
    for expected, record in zip(stored["records"], found["records"]):
        kind = "floor" if record["model"] in FLOORS else "trained"
        assert {k: record[k] for k in SCORES} == pytest.approx(
            {k: expected[k] for k in SCORES}, abs=TOLERANCE[kind]
        ), [record[k] for k in KEY]


def test_the_submission_ranks_every_test_graph_with_its_own_configurations(run):
    data, out = run
    with open(out / "submission.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    expected = [file.id for file in index(data) if file.split == "test"]
    assert sorted(row["ID"] for row in rows) == sorted(expected)
    for row in rows:
        order = [int(text) for text in row["TopConfigs"].split(";")]
        if row["ID"].startswith("tile"):
            assert len(set(order)) == len(order) == 5
        else:
            assert sorted(order) == list(range(len(order)))


def test_everything_of_a_run_is_there(run):
    _, out = run
    assert all((out / name).stat().st_size > 0 for name in WRITTEN)
    entries = json.loads((out / "manifest.json").read_text())["notebooks"]
    kept = sorted(path.stem for path in (out / "notebooks").iterdir())
    assert [entry["notebook"] for entry in entries] == kept
    assert {entry["status"] for entry in entries} == {"done"}
    assert list((out / "figures").glob("*.png")) and list((out / "models").rglob("*.ubj"))
