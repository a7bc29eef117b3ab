"""A mark changes with what it stands for and with nothing else."""

import ast
import os
from pathlib import Path

import polars as pl
import pytest

from utils.flatten import Flattener
from utils.made_of import READING, has_mark, mark, write_marked

UTILS = Path(__file__).resolve().parent.parent / "utils"
MARKED = sorted(p.stem for p in UTILS.glob("*.py") if "\n_MADE_BY = " in p.read_text("utf-8"))
# What a result may pass through unchanged, or names that change none.
EXEMPT = {
    "cluster": "where work is done",
    "cost": "seconds and memory, noted beside a result",
    "feature_tables": "its tables are read as files, which a mark names by their time",
    "files": "writes what it is given",
    "layout_features.prefixed": "puts a word before names of columns",
    "layout_tables.Columns": "a type",
    "made_of": "marks, and writes what it is given",
    "manifest": "its hash of the contents is a part of a mark",
    "model_files": "where models lie",
    "notebook": "where tables lie",
    "progress": "a bar on the terminal",
    "stat_tables": "its tables are read as files; the names of the keys",
    "study": "which fits there are, and writes what it is given",
}


def reached(name: str) -> tuple[set[str], set[str]]:
    """(modules that the marks of a module name, definitions that what is marked is made by)."""
    flattener = Flattener(UTILS, ())
    listed: set[str] = set()
    for statement in flattener.module(name).statements:
        if statement.names == ("_MADE_BY",):
            listed = set(ast.literal_eval(statement.node.value).split())
        elif any(isinstance(n, ast.Name) and n.id == "_MADE_BY" for n in ast.walk(statement.node)):
            for own in statement.names:
                flattener.reach(name, own)
    return listed, {
        f"{module}.{defined}"
        for module, indices in flattener.reached.items()
        for i in indices
        for defined in flattener.module(module).statements[i].names
    }


@pytest.mark.parametrize("name", MARKED)
def test_a_mark_names_every_module_that_can_change_the_result(name):
    listed, used = reached(name)
    known = listed | set(READING.split()) | (set(EXEMPT) - {name})
    assert not sorted(u for u in used if not known & {u, u.split(".")[0]})
    assert not listed - {u.split(".")[0] for u in used}  # nor one that can't


def test_no_exemption_is_needless():
    used = set.union(*(reached(name)[1] for name in MARKED))
    assert not set(EXEMPT) - used - {u.split(".")[0] for u in used}


def test_mark_changes_with_code_files_and_values(tmp_path):
    file = tmp_path / "a"
    file.write_text("1")
    first = mark("schema", file, 1, "x")
    assert first == mark("schema", file, 1, "x")
    others = [mark("schema progress", file, 1, "x"), mark("schema", file, 2, "x")]
    file.write_text("22")
    others.append(mark("schema", file, 1, "x"))
    os.utime(file, ns=(5, 5))
    others.append(mark("schema", file, 1, "x"))
    assert len({first, *others}) == 5


def test_a_marked_table_is_found_again(tmp_path):
    path, table = tmp_path / "deep" / "t.parquet", pl.DataFrame({"a": [1.5]})
    assert not has_mark(path, "m")
    write_marked(path, table, "m")
    assert has_mark(path, "m") and not has_mark(path, "n")
    assert pl.read_parquet(path).equals(table)
