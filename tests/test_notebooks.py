"""Every numbered notebook has the same build, so that a reader and papermill find their way."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

from utils.notebook_files import parameter_defaults

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NUMBERED = sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))
COMMON = {"DATA_DIR": "", "OUT_DIR": "outputs/sample", "COLLECTIONS": "", "SEED": 0, "FULL": False}
ROOT_LINE = """\
KAGGLE = Path("/kaggle/input")  # the repository may be attached there as a dataset
ATTACHED = (p for places in ("*", "*/*", "*/*/*") for p in KAGGLE.glob(places))
PLACES = (Path.cwd(), *Path.cwd().parents, *ATTACHED)
ROOT = next(p for p in PLACES if (p / "utils" / "schema.py").exists())"""
MOST_LINES = 20  # of a code cell; longer logic belongs in utils, with a test

EVERY = sorted(FOLDER.glob("*.ipynb"))

each_notebook = pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
each_numbered = pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)


def cells_of(path: Path, kind: str) -> list:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


def is_parameters(cell) -> bool:
    return "parameters" in cell.metadata.get("tags", [])


@each_notebook
def test_it_is_valid_and_starts_with_a_title_and_prose(path):
    content = nbformat.read(path, 4)
    nbformat.validate(content)
    first = content.cells[0]
    assert first.cell_type == "markdown"
    title, *prose = first.source.strip().splitlines()
    assert re.fullmatch(r"# \S.*", title)
    assert len("".join(prose)) > 80, "say what is asked, what is read and what is written"


@each_notebook
def test_it_has_no_outputs_and_the_kernel_python3(path):
    content = nbformat.read(path, 4)
    assert content.metadata.kernelspec.name == "python3"
    for cell in content.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
        assert "papermill" not in cell.metadata


@each_notebook
def test_headings_go_down_one_level_at_a_time(path):
    text = "\n".join(cell.source for cell in cells_of(path, "markdown"))
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels


@each_numbered
def test_one_parameters_cell_with_a_comment_on_every_parameter(path):
    (cell,) = [cell for cell in cells_of(path, "code") if is_parameters(cell)]
    defaults = parameter_defaults(cell.source, path)
    assert {name: defaults.get(name) for name in COMMON} == COMMON
    lines = cell.source.splitlines()
    for statement in ast.parse(cell.source).body:
        above = lines[statement.lineno - 2] if statement.lineno > 1 else ""
        assert "  # " in lines[statement.end_lineno - 1] or above.startswith("# "), statement.lineno


@each_numbered
def test_the_first_code_after_the_parameters_finds_the_repository(path):
    code = cells_of(path, "code")
    after = code[next(i for i, cell in enumerate(code) if is_parameters(cell)) + 1]
    assert ROOT_LINE in after.source
    assert "sys.path.insert(0, str(ROOT))" in after.source.splitlines()


@each_numbered
def test_code_cells_are_short_and_follow_prose(path):
    for cell in cells_of(path, "code"):
        count = sum(bool(line.strip()) for line in cell.source.splitlines())
        assert 0 < count <= MOST_LINES, cell.source
    kinds = [cell.cell_type for cell in nbformat.read(path, 4).cells]
    assert kinds.count("markdown") >= kinds.count("code") / 3


@each_numbered
def test_code_and_prose_name_no_folder_of_one_machine(path):
    for cell in nbformat.read(path, 4).cells:
        assert not re.search(r"(?<!\w)/(home|root|Users|work|tmp)/", cell.source), cell.source


def test_numbers_are_used_once():
    numbers = [path.name[:2] for path in NUMBERED]
    assert len(set(numbers)) == len(numbers)
