"""Where notebooks run and where they look: both working directories, a repository that can't be
written to with outputs elsewhere (a Kaggle dataset), and the order of the places with data."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_data

from utils import dataset
from utils.dataset import find_data

ROOT = Path(__file__).resolve().parent.parent
NUMBERED = [path.name for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))]

# Runs the first code cells of every notebook, up to the one that opens the run, each with its own
# import of utils. Prints one line of JSON a notebook.
OPEN_ALL = """
import json, sys
from pathlib import Path

folder, out, KAGGLE, names = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
for name in names:
    before = list(sys.path)
    space = {"__name__": "__main__"}
    cells = json.loads((Path(folder) / name).read_text(encoding="utf-8"))["cells"]
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        source = "".join(cell["source"]).replace("/kaggle/input", KAGGLE)
        until = [line for line in source.splitlines() if line.startswith("run = open_run(")]
        exec(source.partition("".join(until))[0] + until[0] if until else source, space)
        if "parameters" in cell["metadata"].get("tags", []):
            space["OUT_DIR"] = out
        if until:
            break
    run = space["run"]
    places = [run.root, run.data, run.out, sys.modules["utils.notebook"].__file__]
    print(json.dumps([str(place) for place in places]))
    sys.path[:] = before
    for module in [m for m in sys.modules if m.split(".")[0] == "utils"]:
        del sys.modules[module]
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository with very little data, write-protected."""
    folder = tmp_path_factory.mktemp("attached") / "repository"
    for part in ("utils", "notebooks"):
        ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    graphs = {"train": 1, "valid": 1, "test": 1}
    tiny_data.build(folder / "data" / "sample", graphs, ("layout:xla:random",))
    protect(folder, 0o555, 0o444)
    yield folder
    protect(folder, 0o755, 0o644)


def protect(folder: Path, folders: int, files: int) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(folders if path.is_dir() else files)


def contents(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("start", [".", "notebooks", "elsewhere"])
def test_every_notebook_finds_repository_and_data_and_writes_elsewhere(copy, tmp_path, start):
    before, out = contents(copy), tmp_path / "out"
    kaggle = copy.parent if start == "elsewhere" else tmp_path  # where a dataset is attached
    command = [sys.executable, "-B", "-c", OPEN_ALL, copy / "notebooks", out, kaggle, *NUMBERED]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"MPLBACKEND": "agg"}
    folder = tmp_path if start == "elsewhere" else copy / start
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    places = [copy, copy / "data" / "sample", out, copy / "utils" / "notebook.py"]
    assert found == [[str(place) for place in places]] * len(NUMBERED)
    assert contents(copy) == before  # root may write anywhere, so look


def test_data_are_looked_for_in_the_folder_given_then_at_kaggle_then_in_the_sample(
    tmp_path, monkeypatch
):
    given, first, second, root = (tmp_path / name for name in ("given", "comp", "other", "repo"))
    inner = "layout/xla/random/train/a.npz"
    assert [path.as_posix() for path in dataset.KAGGLE_MOUNTS] == [
        "/kaggle/input/predict-ai-model-runtime",
        "/kaggle/input/competitions/predict-ai-model-runtime",
    ]
    monkeypatch.setattr(dataset, "KAGGLE_MOUNTS", (first, second))
    expected = []
    for place, below in ((root, "data/sample"), (second, "npz_all/npz"), (first, "npz_all/npz")):
        path = place / below / inner
        path.parent.mkdir(parents=True)
        path.touch()
        expected.append(place / below)
        assert find_data("", root) == expected[-1]
    path = given / "npz_all" / inner
    path.parent.mkdir(parents=True)
    path.touch()
    assert find_data(str(given), root) == given / "npz_all"
