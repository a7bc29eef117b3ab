"""./run_all.sh's runner: what it refuses, what it keeps and what it says."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
from half_written import half_written

from utils import cluster, options, run_notebook, runner, synthetic
from utils.files import save_npz
from utils.notebook_files import NotebookError, convert, read_notebook
from utils.run_notebook import Outcome

PARAMETERS = 'DATA_DIR = ""\nOUT_DIR = "outputs/sample"\nCOLLECTIONS = ""\nFULL = False\n'


def write_notebook(path: Path, *cells: str, parameters: str = PARAMETERS, kernel: str = "python3"):
    """A notebook of a title, a parameters cell and code cells."""
    v4 = nbformat.v4
    tagged = v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    parts = [v4.new_markdown_cell("# T"), tagged, *(v4.new_code_cell(c) for c in cells)]
    metadata = {"kernelspec": {"name": kernel, "display_name": "Python 3", "language": "python"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(v4.new_notebook(cells=parts, metadata=metadata), path)


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    return synthetic.write_data(folder, graphs={"train": 1, "valid": 1}, configs=5, layers=2)


@pytest.fixture
def root(tmp_path, sample, monkeypatch) -> Path:
    """A repository with the sample and no notebooks yet; the current folder is another one."""
    (tmp_path / "repo" / "data").mkdir(parents=True)
    shutil.copytree(sample, tmp_path / "repo" / "data" / "sample")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "repo"


@pytest.fixture
def pretend(monkeypatch) -> list[str]:
    """Notebooks are not executed but listed, with their parameters."""
    ran: list[str] = []

    def run(source, target, parameters, *rest) -> Outcome:
        ran.append(f"{source.stem} {parameters}")
        return Outcome("done", 1.0, 10.0, "")

    monkeypatch.setattr(runner, "run_notebook", run)
    return ran


def test_a_run_passes_parameters_and_leaves_notebooks_and_a_manifest(root, capsys):
    note = "from pathlib import Path\nimport os, sys\n"
    note += "Path(OUT_DIR, 'note').write_text(f'{TREES + 1} {FULL} {sys.executable}')"
    own = "TREES = 10\nRATE = 0.5\n"
    write_notebook(root / "notebooks/01_eda.ipynb", note, parameters=PARAMETERS + own)
    # the kernel is looked at a few times a second: it must not be gone before that
    hold = "import time\nx = bytearray(150_000_000)\ndel x\ntime.sleep(2)"
    write_notebook(root / "notebooks/02_next.ipynb", hold)
    write_notebook(root / "notebooks/07_gnn.ipynb", "1 / 0")  # an extra: only --with gnn
    assert runner.main(["-p", "TREES", "7", "--full"], root) == 0
    out = root / "outputs/sample"
    assert (out / "note").read_text() == f"8 True {sys.executable}"
    kept = sorted(path.name for path in (out / "notebooks").iterdir())
    assert kept == ["01_eda.ipynb", "02_next.ipynb"]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[1:3]] == ["01_eda", "02_next"]
    assert all(line.endswith(" MB") for line in printed[1:3])
    text = (out / "manifest.json").read_text()
    assert str(root) not in text and str(root) not in (out / "notebooks/01_eda.ipynb").read_text()
    manifest = json.loads(text)
    first, second = manifest["notebooks"]
    assert first["parameters"]["TREES"] == 7 and first["parameters"]["FULL"] is True
    assert second["peak_mb"] > first["peak_mb"] + 80
    assert manifest["packages"].keys() >= {"python"} and manifest["machine"]["cpus"] >= 1
    assert manifest["data"]["collections"]["tile:xla"]["files"] == 2


def test_options_choose_notebooks_and_the_manifest_keeps_the_others(root, pretend):
    for name in ("01_eda", "02_next", "07_gnn"):
        write_notebook(root / f"notebooks/{name}.ipynb", parameters=PARAMETERS + "THREADS = 0\n")
    assert runner.main(["--with", "gnn", "--jobs", "2", "--only", "7"], root) == 0
    assert runner.main(["--from", "02", "--data", str(root / "data")], root) == 0
    assert pretend == [
        "07_gnn {'OUT_DIR': 'outputs/sample', 'THREADS': 2}",
        "02_next {'OUT_DIR': 'outputs/run', 'DATA_DIR': 'data'}",
    ]
    assert runner.main([], root) == 0
    manifest = json.loads((root / "outputs/sample/manifest.json").read_text())
    assert [e["notebook"] for e in manifest["notebooks"]] == ["01_eda", "02_next", "07_gnn"]
    assert manifest["notebooks"][2]["parameters"]["THREADS"] == 2


def test_no_cache_reaches_the_notebooks_that_read(root, pretend, capsys):
    write_notebook(root / "notebooks/01_eda.ipynb", parameters=PARAMETERS + "CACHE = True\n")
    write_notebook(root / "notebooks/02_next.ipynb")
    assert runner.main(["--no-cache"], root) == 0
    assert pretend == [
        "01_eda {'OUT_DIR': 'outputs/sample', 'CACHE': False}",
        "02_next {'OUT_DIR': 'outputs/sample'}",
    ]
    assert "Coded graphs" not in capsys.readouterr().out
    kept = root / "outputs/sample/cache/graphs/tile_xla/train/a.npz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(3 << 20))
    assert runner.main(["--only", "01"], root) == 0
    assert "Coded graphs: 3.0 MB in " in capsys.readouterr().out
    assert runner.main(["-p", "CACHE", "False"], root) == 2
    assert "-p CACHE: use --no-cache" in capsys.readouterr().err


def test_an_interrupt_names_the_command_that_goes_on(root, monkeypatch, capsys):
    write_notebook(root / "notebooks/01_eda.ipynb")

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_notebook", interrupt)
    assert runner.main(["--full"], root) == 130
    assert "./run_all.sh --full --from 01" in capsys.readouterr().err


def test_a_terminated_run_leaves_no_half_written_file(root):
    cell = "import time\nfrom pathlib import Path\nfrom utils.files import atomic_path\n"
    cell += "with atomic_path(Path(OUT_DIR, 'tables', 'a')) as path:\n    time.sleep(600)"
    write_notebook(root / "notebooks/01_eda.ipynb", cell)
    code = "import sys; from pathlib import Path; from utils import runner\n"
    code += "sys.exit(runner.main([], Path(sys.argv[1])))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, root], text=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(options.ROOT)},
    )  # fmt: skip
    (half,) = half_written(root / "outputs", process)
    process.terminate()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130 and "./run_all.sh --from 01" in said
    assert list(half.parent.iterdir()) == []


def test_a_failing_cell_is_shown_and_the_notebook_kept(root, capsys):
    write_notebook(root / "notebooks/01_eda.ipynb", "a = 1", "raise ValueError('too many graphs')")
    write_notebook(root / "notebooks/02_next.ipynb", "b = 1")
    assert runner.main(["--collections", "tile:xla", "--out", "made"], root) == 1
    out = Path.cwd() / "made"  # relative to where the user is
    kept = nbformat.read(out / "notebooks/01_eda.ipynb", 4)
    assert any("too many graphs" in str(cell.get("outputs")) for cell in kept.cells)
    assert not (out / "notebooks/02_next.ipynb").exists()
    said = capsys.readouterr().err
    assert "raise ValueError('too many graphs')" in said and "ValueError: too many graphs" in said
    assert "./run_all.sh --collections tile:xla --out made --from 01" in said
    assert "made/notebooks/01_eda.ipynb" in said


@pytest.mark.parametrize("papermill", ["notices", "hangs"])
def test_a_kernel_that_is_killed_is_reported_as_such(root, capsys, monkeypatch, papermill):
    monkeypatch.setattr(run_notebook, "PATIENCE", 3.0)
    stop = "os.kill(os.getppid(), signal.SIGSTOP)\n" if papermill == "hangs" else ""
    cell = f"import os, signal\n{stop}os.kill(os.getpid(), 9)"
    write_notebook(root / "notebooks/01_eda.ipynb", cell)
    assert runner.main([], root) == 1
    said = capsys.readouterr().err
    assert "The kernel died" in said and "memory ran out" in said
    assert "os.kill(os.getpid(), 9)" in said and "--from 01" in said
    entry = json.loads((root / "outputs/sample/manifest.json").read_text())["notebooks"][0]
    assert entry["status"] == "kernel died"


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        (["-p", "MAX_CONFGS", "5"], "-p MAX_CONFGS: no notebook has it; nearest: MAX_CONFIGS"),
        (["-p", "MAX_CONFIGS", "five"], "-p MAX_CONFIGS five: must be a whole number, such as 9"),
        (["-p", "OUT_DIR", "x"], "-p OUT_DIR: use --out"),
        (["--only", "02", "-p", "MAX_CONFIGS", "5"], "only 01_eda has it, which is not run"),
        (["--from", "9"], "there is no notebook 09, only 01, 02"),
        (["--with", "gnn"], "there is no notebook 07 (--with gnn), only 01, 02"),
        (["--collections", "tile:xli"], "did you mean tile:xla?"),
    ],
)
def test_wrong_requests_end_before_anything_runs(root, capsys, words, reply):
    with_maximum = PARAMETERS + "MAX_CONFIGS = 9\n"
    write_notebook(root / "notebooks/01_eda.ipynb", "1 / 0", parameters=with_maximum)
    write_notebook(root / "notebooks/02_next.ipynb", "1 / 0")
    assert runner.main(words, root) == 2
    said = capsys.readouterr()
    assert reply in said.err and said.err.count("\n") == 1 and said.out == ""
    assert not (root / "outputs").exists()


def test_data_that_is_no_folder_is_named_as_such(root, capsys):
    write_notebook(root / "notebooks/01_eda.ipynb", "1 / 0")
    Path("a.npz").write_bytes(b"")
    said = (("nowhere", "nowhere: no such folder"), ("a.npz", "a.npz: a file, not a folder"))
    for data, reply in said:
        assert runner.main(["--data", data], root) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ") and reply in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        (["--out", "there"], "--out: there is a file, not a folder"),
        (["--out", "there/x"], "--out: there is a file, not a folder"),
        (["--out", ""], "--out: it is empty"),
        (["--jobs", "0"], "--jobs: '0' is not a whole number of at least 1"),
        (["--jobs", "two"], "--jobs: 'two' is not a whole number of at least 1"),
    ],
)
def test_wrong_words_are_refused_as_argparse_does(root, capsys, words, reply):
    Path("there").write_text("")
    with pytest.raises(SystemExit, match="2"):
        runner.main(words, root)
    assert reply in capsys.readouterr().err


def test_what_killed_runs_left_half_written_is_removed(root, pretend):
    write_notebook(root / "notebooks/01_eda.ipynb")
    tables = root / "outputs/sample/tables"
    tables.mkdir(parents=True)
    names = (".writing-old.parquet", ".writing-new.parquet", "old.parquet")
    for name in names:
        (tables / name).write_text("half")
        if "old" in name:
            os.utime(tables / name, (0, 0))
    assert runner.main([], root) == 0
    assert sorted(path.name for path in tables.iterdir()) == sorted(names[1:])


@pytest.mark.parametrize(
    ("parameters", "kernel", "reply"),
    [
        (PARAMETERS, "conda-env", "its kernel is 'conda-env' and must be 'python3'"),
        ("SEED = int(3)", "python3", "its parameters cell must be plain values"),
        ("import os", "python3", "its parameters cell must be plain values"),
    ],
)
def test_notebooks_that_papermill_would_misread_are_refused(tmp_path, parameters, kernel, reply):
    path = tmp_path / "01_eda.ipynb"
    write_notebook(path, parameters=parameters, kernel=kernel)
    with pytest.raises(NotebookError, match=reply):
        read_notebook(path)


def test_a_notebook_without_a_parameters_cell_is_refused(tmp_path):
    path = tmp_path / "01_eda.ipynb"
    write_notebook(path)
    content = nbformat.read(path, 4)
    del content.cells[1]
    nbformat.write(content, path)
    with pytest.raises(NotebookError, match="needs one code cell tagged 'parameters', has 0"):
        read_notebook(path)


def damage(folder: Path, how: str) -> None:
    """Make the data folder bad in one way."""
    victim = next((folder / "layout/nlp/random/train").iterdir())
    if how == "truncated":
        victim.write_bytes(victim.read_bytes()[:2000])
    elif how == "missing key":
        with np.load(victim) as arrays:
            save_npz(victim, **{k: arrays[k] for k in arrays if k != "node_config_ids"})
    elif how == "NaN":
        with np.load(victim) as arrays:
            changed = {k: arrays[k] for k in arrays}
        changed["node_feat"][0, 21] = np.nan
        save_npz(victim, **changed)
    elif how == "empty":
        shutil.rmtree(folder)
        folder.mkdir()
    elif how == "another shape":
        other = folder / "graphs" / victim.name
        other.parent.mkdir()
        victim.rename(other)
        shutil.rmtree(folder / "layout")
        shutil.rmtree(folder / "tile")


@pytest.mark.parametrize("how", ["truncated", "missing key", "NaN", "empty", "another shape"])
def test_bad_data_gives_one_clear_line_before_any_notebook_starts(root, capsys, how):
    write_notebook(root / "notebooks/01_eda.ipynb", "1 / 0")
    damage(root / "data/sample", how)
    assert runner.main([], root) == 1
    lines = capsys.readouterr().err.splitlines()
    names_file = how in ("truncated", "missing key", "NaN")
    assert len(lines) == 1 + names_file and all(line.startswith("error: ") for line in lines)
    assert ("layout/nlp/random/train" if names_file else "data/sample") in lines[0]
    if names_file:
        assert lines[1] == "error: 1 of 10 data files are bad; nothing was run"
    assert not (root / "outputs").exists()


def test_results_of_other_data_are_not_mixed(root, pretend, capsys):
    write_notebook(root / "notebooks/01_eda.ipynb")
    assert runner.main([], root) == 0
    synthetic.write_data(
        root / "data/sample", seed=1, graphs={"train": 1, "valid": 1}, collections=("tile:xla",)
    )
    assert runner.main([], root) == 1
    assert "outputs/sample holds results of other data in tile:xla" in capsys.readouterr().err
    assert runner.main(["--collections", "layout:nlp:random"], root) == 0


def test_the_command_that_resumes_keeps_all_other_options():
    words = ["--data", "my data", "--from", "02", "-p", "SEED", "3", "--with=gnn"]
    expected = "./run_all.sh --data 'my data' -p SEED 3 --with=gnn --from 05"
    assert options.resume_command(words, "05") == expected
    assert options.resume_command(["--only=03"], "03") == "./run_all.sh --only 03"


def test_extras_name_their_requirements():
    assert options.requirements(options.parse([])) == ["requirements.txt"]
    with_xla = options.requirements(options.parse(["--with", "xla"]))
    assert with_xla == ["requirements.txt", "requirements-xla.txt"]
    with_dask = options.requirements(options.parse(["--dask", "tcp://10.0.0.1:8786"]))
    assert with_dask == ["requirements.txt", "requirements-dask.txt"]
    with pytest.raises(SystemExit):
        options.parse(["--with", "gpu"])


def test_a_dask_scheduler_is_tried_before_anything_runs(root, pretend, monkeypatch, capsys):
    write_notebook(root / "notebooks/01_eda.ipynb", parameters=PARAMETERS + 'DASK = ""\n')
    write_notebook(root / "notebooks/02_next.ipynb")
    address = "tcp://10.0.0.1:8786"
    two = SimpleNamespace(nthreads=lambda: {"a": 1, "b": 1})
    monkeypatch.setattr(cluster, "open_client", lambda *given: nullcontext(two))
    assert runner.main(["--dask", address], root) == 0
    assert f"'DASK': '{address}'" in pretend[0] and "DASK" not in pretend[1]
    text = (root / "outputs/sample/manifest.json").read_text()
    assert json.loads(text)["dask_workers"] == 2
    assert address not in text  # it names a machine

    def fail(*given):
        raise cluster.ClusterError(f"{address}: no Dask scheduler answers there")

    monkeypatch.setattr(cluster, "open_client", fail)
    assert runner.main(["--dask", address], root) == 1
    assert capsys.readouterr().err == f"error: {address}: no Dask scheduler answers there\n"
    assert len(pretend) == 2
    assert runner.main(["-p", "DASK", address], root) == 2
    assert "-p DASK: use --dask" in capsys.readouterr().err


def test_parameter_texts_become_values_of_the_defaults_type():
    assert convert("A", "2.5", 1.0) == 2.5
    assert convert("A", "false", True) is False
    assert convert("A", "5", "text") == "5"
    assert convert("A", "[1, 2]", [0]) == [1, 2]
    with pytest.raises(NotebookError, match="true or false"):
        convert("A", "maybe", True)
