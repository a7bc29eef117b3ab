"""A mark changes with what it stands for and with nothing else."""

import os

import polars as pl

from utils.made_of import has_mark, mark, write_marked


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
