"""The Kaggle notebook: fresh, readable, and the same scores as the repository's own way.

The runs here are real ones in processes of their own (see kernel_runs.py), on a slice of the
sample laid out like Kaggle's mount; the second one has packages a year older than ours.
"""

import inspect
import os
from pathlib import Path

import kernel_runs
import nbformat
import numpy as np
import pytest
import tiny_data

from utils import cost_study, evaluate, kernel, ranking, study, submission
from utils.dataset import index
from utils.feature_tables import write_features
from utils.notebook import Run
from utils.stat_tables import write_statistics
from utils.vector_tables import get_reducer, write_vectors

COLLECTIONS = ("layout:xla:random", "tile:xla")
GRAPHS = {"train": 3, "valid": 2, "test": 1}
REAL = Path(os.environ.get("TPUGRAPHS_DIR", kernel.ROOT.parent / "shared" / "tpugraphs"))
MOUNT = "/kaggle/input/predict-ai-model-runtime"
OTHER_MOUNT = "/kaggle/input/competitions/predict-ai-model-runtime"


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    """A folder like the competition's mount: the data lie in npz_all/npz."""
    folder = tmp_path_factory.mktemp("input")
    tiny_data.build(folder / "npz_all" / "npz", GRAPHS, COLLECTIONS)
    return folder


@pytest.fixture(scope="module")
def by_repository(mount, tmp_path_factory):
    """A run with its tables and predictions, made by the functions that the notebooks call."""
    data, out = mount / "npz_all" / "npz", tmp_path_factory.mktemp("out")
    run = Run(kernel.ROOT, data, out, index(data), COLLECTIONS)
    write_statistics(run)
    write_vectors(run, get_reducer(run, 16, 0))
    write_features(run)
    models = ["byte_count", "rank_pairwise", "cost_tables"]
    fits = study.plan(run).fits + study.plan(run, trained=["cost_tables"]).fits
    fits = [fit for fit in fits if fit.fold is None and fit.model in models]
    study.run_fits(run, [fit for fit in fits if fit.model != "cost_tables"], 1000, threads=1)
    layouts = [f for f in fits if f.model == "cost_tables" and f.collection != "tile:xla"]
    cost_study.run_fits(run, layouts, 1000, threads=1)
    return run


@pytest.fixture(scope="module")
def kernel_run(mount, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernel")
    return kernel_runs.run(kernel_runs.here(), folder, f"{MOUNT}={mount}", "THREADS=1")


def cells(kind: str) -> list[str]:
    return [c.source for c in nbformat.read(kernel.TARGET, 4).cells if c.cell_type == kind]


def test_the_notebook_is_what_the_command_writes():
    assert kernel.TARGET.read_text(encoding="utf-8") == kernel.build(), "python -m utils.kernel"


def test_a_reader_finds_whole_functions_under_the_name_of_their_module():
    content = nbformat.read(kernel.TARGET, 4).cells
    at = next(i for i, c in enumerate(content) if c.source.startswith("### ranking\n"))
    assert inspect.getsource(ranking.fit) in content[at + 1].source + "\n"
    assert "rank:pairwise" in content[at + 1].source
    headings = [c.source.split("\n")[0] for c in content if c.source.startswith("## ")]
    assert [text.removeprefix("## ") for text in headings] == [
        *(title for title, _, _ in kernel.SECTIONS), "Run",
    ]  # fmt: skip


def test_no_code_is_hidden():
    for source in cells("code"):
        names = {"exec(", "eval(", "b64decode", "import utils", "from utils"}
        assert not [name for name in names if name in source]


def test_scores_equal_those_of_the_repository(by_repository, kernel_run):
    scores = evaluate.graph_scores(by_repository, ["valid"])
    assert [result["collection"] for result in kernel_run["results"]] == list(COLLECTIONS)
    for result in kernel_run["results"]:
        mine = scores.filter(scores["collection"] == result["collection"])
        column = "tile_score" if result["collection"] == "tile:xla" else "tau"
        means = {
            name: float(np.mean(np.sort(part[column].to_numpy())))
            for (name,), part in mine.group_by("model")
        }
        assert result["scores"] == pytest.approx(means, abs=1e-12)
        assert result["graphs"] == GRAPHS["valid"] and result["trained_on"] == GRAPHS["train"]
        assert 0 < result["ceiling"] <= 1


def test_the_submission_equals_that_of_the_repository(by_repository, kernel_run):
    chosen = [
        {"collection": r["collection"], "model": r["chosen"]} for r in kernel_run["results"]
    ]
    assert kernel_run["rows"] == dict(submission.submission_rows(by_repository, chosen))


def test_it_needs_and_leaves_nothing_else(kernel_run):
    assert kernel_run["ours"] == []
    assert kernel_run["made"] == ["submission.csv"]
    assert kernel_run["left_out"] == [] and "left out:\n  nothing" in kernel_run["printed"]


@pytest.mark.skipif(
    not kernel_runs.OLD_PYTHON.exists(), reason="no .venv-kaggle: ./run_all.sh test makes it"
)
def test_it_runs_on_releases_a_year_older(mount, kernel_run, tmp_path):
    other = f"{OTHER_MOUNT}={mount}"
    found = kernel_runs.run(kernel_runs.OLD_PYTHON, tmp_path, other, "THREADS=1")
    for name, version in found["packages"].items():
        older, newer = (
            tuple(map(int, text.split(".")[:2])) for text in (version, kernel_run["packages"][name])
        )
        assert older < newer, name
    assert found["ours"] == [] and found["made"] == ["submission.csv"]
    data = mount / "npz_all" / "npz"
    tests = [file for file in index(data) if file.split == "test"]
    kernel_runs.check_rows(found["rows"], {file.id: configs_of(file) for file in tests})
    for old, new in zip(found["results"], kernel_run["results"]):
        assert old["scores"]["byte_count"] == pytest.approx(new["scores"]["byte_count"], abs=1e-9)
        assert old["scores"].keys() == new["scores"].keys()
        assert old["ceiling"] == pytest.approx(new["ceiling"], abs=0.02)


def test_it_runs_on_real_files_of_the_release(tmp_path):
    if not (REAL / "npz").is_dir():
        pytest.skip(f"no real files in {REAL}: set TPUGRAPHS_DIR")
    old = kernel_runs.OLD_PYTHON
    python = old if old.exists() else kernel_runs.here()
    found = kernel_runs.run(python, tmp_path, f'DATA_DIR="{REAL.resolve()}"', "THREADS=1")
    files = index(REAL / "npz")
    kernel_runs.check_rows(found["rows"], {f.id: configs_of(f) for f in files if f.split == "test"})
    # The other training graphs hold one configuration only, again and again.
    trained = {r["collection"] for r in found["results"] if r["trained_on"]}
    assert trained == {"layout:xla:default"}
    for result in found["results"]:
        assert ("rank_pairwise" in result["scores"]) == (result["collection"] in trained)
        assert result["collection"] in trained or result["chosen"] == "byte_count"


def configs_of(file) -> int:
    with np.load(file.path) as arrays:
        return len(arrays["config_runtime"])
