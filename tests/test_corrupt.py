"""Corrupt inputs: one clear line each, before any work and without any output; odd ones work."""

import io
import resource
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy

from utils import files, options, runner, synthetic
from utils.coding import deduplicate, read_graph
from utils.cost_rows import cost_rows, score_rows
from utils.dataset import DataError, GraphFile, check_files
from utils.feature_tables import feature_tables
from utils.structure import read_structure

ROOT = Path(__file__).resolve().parents[1]
LAYOUT, TILE = "layout:xla:random", "tile:xla"


def arrays_of(collection=LAYOUT, configs=12):
    if collection == TILE:
        return synthetic.tile_graph(0, configs)[0]
    return synthetic.layout_graph(0, "xla", "random", 2, configs)[0]


def place(folder, collection=LAYOUT, name="x", split="train") -> GraphFile:
    path = folder.joinpath(*collection.split(":"), split, f"{name}.npz")
    path.parent.mkdir(parents=True, exist_ok=True)
    return GraphFile(collection, split, name, path)


def write(folder, arrays, collection=LAYOUT, name="x", split="train") -> GraphFile:
    file = place(folder, collection, name, split)
    files.save_npz(file.path, **arrays)
    return file


def put(key, at, value):
    def spoil(arrays):
        arrays[key] = arrays[key].copy()
        arrays[key][at] = value
    return spoil


def turn(key, change):
    def spoil(arrays):
        arrays[key] = change(arrays[key])
    return spoil


def no_configs(arrays):
    for key in ("config_runtime", "node_config_feat", "config_runtime_rounds"):
        arrays[key] = arrays[key][:0]


# What is wrong with the arrays: (collection, how, what the line says).
ARRAYS = {
    "a key is missing": (LAYOUT, lambda a: a.pop("edge_index"), "key edge_index is missing"),
    "tile arrays as layout": (LAYOUT, lambda a: (a.clear(), a.update(arrays_of(TILE))), "missing"),
    "layout arrays as tile": (TILE, lambda a: (a.clear(), a.update(arrays_of())), "missing"),
    "float64 features": (LAYOUT, turn("node_feat", np.float64), "float64, expected float32"),
    "int32 runtimes": (TILE, turn("config_runtime", np.int32), "int32, expected int64"),
    "float runtimes": (LAYOUT, turn("config_runtime", np.float64), "float64, expected int64"),
    "complex features": (LAYOUT, turn("node_feat", np.complex64), "complex64, expected float32"),
    "text opcodes": (LAYOUT, turn("node_opcode", lambda a: a.astype("U3")), "expected uint8"),
    "big-endian edges": (LAYOUT, turn("edge_index", lambda a: a.astype(">i8")), ">i8"),
    "bool configurations": (TILE, turn("config_feat", lambda a: a > 0), "bool, expected float32"),
    "Fortran order": (LAYOUT, turn("node_config_feat", np.asfortranarray), "in Fortran order"),
    "one dimension too many": (LAYOUT, turn("node_opcode", lambda a: a[None]), "has shape"),
    "a scalar": (LAYOUT, turn("config_runtime", lambda a: a[0]), "has shape ()"),
    "70 node columns": (LAYOUT, turn("node_feat", lambda a: a[:, :70]), "70 of 140 columns"),
    "10 layout columns": (
        LAYOUT, turn("node_config_feat", lambda a: a[..., :10]), "10 of 18 columns"),
    "23 tile columns": (TILE, turn("config_feat", lambda a: a[:, :23]), "23 of 24 columns"),
    "edges of three": (
        LAYOUT, turn("edge_index", lambda a: np.c_[a, a[:, :1]]), "expected 2 where it has 3"),
    "fewer runtimes": (LAYOUT, turn("config_runtime", lambda a: a[:-1]), "has shape (11,)"),
    "fewer opcodes": (TILE, turn("node_opcode", lambda a: a[:-1]), "node_opcode has shape"),
    "fewer ids": (LAYOUT, turn("node_config_ids", lambda a: a[:-1]), "node_config_"),
    "no configuration": (LAYOUT, no_configs, "no configuration"),
    "NaN features": (LAYOUT, put("node_feat", (1, 3), np.nan), "NaN or infinite values (node 1)"),
    "infinite features": (TILE, put("node_feat", (0, 3), -np.inf), "infinite values (node 0)"),
    "an edge too high": (LAYOUT, put("edge_index", (0, 0), 10**12), "points outside"),
    "a negative edge": (TILE, put("edge_index", (0, 1), -1), "points outside"),
    "an edge to itself": (LAYOUT, put("edge_index", 0, 1), "from a node to itself"),
    "an id too high": (LAYOUT, put("node_config_ids", -1, 10**6), "node_config_ids points outside"),
    "a negative id": (LAYOUT, put("node_config_ids", 0, -1), "node_config_ids points outside"),
    "an id twice": (LAYOUT, turn("node_config_ids", lambda a: a * 0), "lists a node twice"),
    "a negative runtime": (LAYOUT, put("config_runtime", 3, -5), "config_runtime is negative"),
    "some runtimes missing": (TILE, put("config_runtime", 3, 0), "is 0 for 1 of 12"),
    "a negative round": (LAYOUT, put("config_runtime_rounds", 3, -5), "rounds is negative"),
    "normalizer zero": (TILE, put("config_runtime_normalizers", 0, 0), "is not positive"),
}


def refused(tmp_path, file: GraphFile, what: str) -> None:
    """The checks, both readers and a whole run say the same line; the run leaves nothing."""
    (problem,) = check_files([file])
    assert problem.startswith(f"{file.path}: ") and "\n" not in problem and what in problem
    for read in (read_graph, read_structure):
        with pytest.raises(DataError) as error:
            read(file)
        assert str(error.value) == problem
    out = tmp_path / "out"
    chosen = options.parse(["--data", str(tmp_path), "--out", str(out)])
    with pytest.raises(DataError, match="1 of 1 data files are bad; nothing was run"):
        runner.make_plan(chosen, ROOT)
    assert not out.exists()


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_cannot_be(tmp_path, case):
    collection, spoil, what = ARRAYS[case]
    arrays = arrays_of(collection)
    spoil(arrays)
    refused(tmp_path, write(tmp_path, arrays, collection), what)


def object_array(path):
    np.savez(path, **arrays_of() | {"node_opcode": np.array([print, len], object)})


def twice(path):
    with zipfile.ZipFile(path) as archive:
        data = archive.read("node_opcode.npy")
    with pytest.warns(UserWarning), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("node_opcode.npy", data)


def promise(path):
    """A header of terabytes in front of a few bytes."""
    head = io.BytesIO()
    facts = {"descr": "<f4", "fortran_order": False, "shape": (10**9, 3, 18)}
    npy.write_array_header_1_0(head, facts)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("extra.npy", head.getvalue() + bytes(100))


def bytes_of(change):
    def spoil(path):
        path.write_bytes(change(path.read_bytes()))
    return spoil


BYTES = {
    "empty": (bytes_of(lambda b: b""), "damaged or not an npz file"),
    "cut in the middle": (bytes_of(lambda b: b[: len(b) // 2]), "damaged or not an npz file"),
    "cut at the end": (bytes_of(lambda b: b[:-9]), "damaged or not an npz file"),
    "another format": (bytes_of(lambda b: b"\x89HDF" + b[4:200]), "damaged or not an npz file"),
    "first half overwritten": (
        bytes_of(lambda b: bytes(len(b) // 2) + b[len(b) // 2 :]), "damaged or not an npz file"),
    "objects": (object_array, "node_opcode is not a plain array (holds Python objects)"),
    "a key twice": (twice, "key node_opcode occurs twice"),
    "terabytes": (promise, "extra promises 216,000,000,000 bytes but holds 100"),
}


@pytest.mark.parametrize("case", BYTES)
def test_bytes_that_cannot_be(tmp_path, case):
    spoil, what = BYTES[case]
    file = write(tmp_path, arrays_of())
    spoil(file.path)
    refused(tmp_path, file, what)


def test_a_name_in_two_splits_and_a_folder_in_place_of_a_file(tmp_path):
    a, b = write(tmp_path, arrays_of()), write(tmp_path, arrays_of(), split="valid")
    folder = place(tmp_path, name="folder")
    folder.path.mkdir()
    problems = check_files([a, b, folder])
    assert [str(f.path) in p for f, p in zip((b, folder), problems, strict=True)] == [True] * 2
    assert "the same name is in the train split" in problems[0]


@pytest.mark.parametrize("value", [-2, 6, 0.5, np.nan, np.inf, -np.inf, 1e9, 2.0**31, 1e-30])
def test_layouts_out_of_range_are_found_when_they_are_read(tmp_path, value):
    arrays = arrays_of()
    arrays["node_config_feat"][5, 1, 2] = value
    file = write(tmp_path, arrays)
    with pytest.raises(DataError, match="node_config_feat holds .* from -1 to 5") as error:
        read_graph(file)
    assert f"{np.float32(value):g} (configuration 5, configurable node 1, column 2)" in str(error)
    assert str(error.value).startswith(f"{file.path}: ") and "\n" not in str(error.value)


# --- odd but right ---

def one(arrays):
    for key in ("config_runtime", "node_config_feat", "config_runtime_rounds"):
        arrays[key] = arrays[key][:1]


ODD = {
    "one configuration": one,
    "all runtimes alike": lambda a: a.update(config_runtime=np.full(12, 7)),
    "all configurations alike": put("node_config_feat", slice(None), -1),
    "unlabelled": lambda a: a.update(config_runtime=np.zeros(12, np.int64)),
    "the largest runtimes": lambda a: a.update(config_runtime=np.full(12, (1 << 63) - 1)),
    "no edges": lambda a: a.update(edge_index=np.empty((0, 2), np.int64)),
    "a key nobody knows": lambda a: a.update(note=np.zeros(3)),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_files_are_read_and_ranked(tmp_path, case):
    arrays = arrays_of()
    ODD[case](arrays)
    file = write(tmp_path, arrays)
    assert check_files([file]) == []
    graph = read_graph(file)
    distinct, inverse, _ = deduplicate(graph)
    table, rows = feature_tables(graph)
    numbers = table.drop("target").to_numpy()
    assert len(rows) == graph.configs and len(table) == distinct.configs == inverse.max() + 1
    assert np.isfinite(numbers[:, [c.startswith("node_") for c in table.columns[1:]]]).all()
    made = cost_rows(graph)
    assert np.isfinite(score_rows(graph, made, np.ones(len(made.kind)))).all()


# --- a full disk ---

@pytest.mark.parametrize("write_large", [
    lambda path, x: files.save_npz(path, x=x),
    lambda path, x: files.write_json(path, x.tolist()),
    lambda path, x: files.write_parquet(path, pl.DataFrame({"x": x})),
], ids=["npz", "json", "parquet"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, write_large):
    path = tmp_path / "table"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # as if the disk ended there
    try:
        with pytest.raises(OSError, match="cannot be written") as error:
            write_large(path, np.random.default_rng(0).random(20_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(path) in str(error.value)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


# --- any header, any byte ---

names = st.sampled_from(["descr", "fortran_order", "shape", "more"])
sizes = st.integers(-2, 1 << 70) | st.integers(0, 40)
values = st.one_of(
    st.sampled_from(["<f4", "<i8", "|u1", ">f8", "|O", "<U9", "V3", "(3,)f4", "q", ""]),
    st.booleans(), st.none(), sizes, st.lists(sizes, max_size=4).map(tuple), st.text(max_size=8),
    st.lists(st.tuples(st.text(max_size=3), st.sampled_from(["<f4", "|O"])), max_size=2),
)


def only_data_errors(file: GraphFile) -> None:
    problems = check_files([file])
    for problem in problems:
        assert problem.startswith(f"{file.path}: ") and "\n" not in problem
    try:
        graph = read_graph(file)
    except DataError as error:
        assert str(error).startswith(f"{file.path}: ") and "\n" not in str(error)
    else:
        assert not problems and graph.configs > 0


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    file = write(tmp_path_factory.mktemp("fuzz"), arrays_of())
    return file, file.path.read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_header_crashes_the_reader(good, data):
    file, contents = good
    with zipfile.ZipFile(io.BytesIO(contents)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = data.draw(st.sampled_from(sorted(members)))
    head, body = members[name][:10], members[name][10:]
    length = int.from_bytes(head[8:10], "little")
    if data.draw(st.booleans()):
        facts = {"descr": "<f4", "fortran_order": False, "shape": (12, 3, 18)}
        facts |= data.draw(st.dictionaries(names, values, max_size=3))
        text = repr(facts).encode("utf-8", "replace")
    else:
        text = bytearray(body[:length])
        for at, byte in data.draw(st.lists(st.tuples(st.integers(0, length - 1),
                                                     st.integers(0, 255)), max_size=4)):
            text[at] = byte
    version = data.draw(st.sampled_from([b"\x01\x00"] * 4 + [b"\x02\x00", b"\x09\x09"]))
    members[name] = b"\x93NUMPY" + version + (len(text) % 65536).to_bytes(2, "little") + text
    members[name] += body[length:]
    with zipfile.ZipFile(file.path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, value in members.items():
            archive.writestr(key, value)
    only_data_errors(file)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_flipped_or_missing_byte_crashes_the_reader(good, data):
    file, contents = good
    spoilt = bytearray(contents)
    start = data.draw(st.sampled_from([0, len(contents) - 900]))  # the directory is at the end
    places = st.tuples(st.integers(start, len(contents) - 1), st.integers(0, 255))
    for at, byte in data.draw(st.lists(places, min_size=1, max_size=6)):
        spoilt[at] = byte
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(contents)))
        del spoilt[at : at + data.draw(st.integers(1, 50))]
    file.path.write_bytes(spoilt)
    only_data_errors(file)


def test_a_disk_that_fills_up_during_a_run_is_one_line(monkeypatch, capsys):
    def fail(*_):
        raise OSError(28, "cannot be written (No space left on device)", "outputs/a.json")

    monkeypatch.setattr(runner, "make_plan", fail)
    assert runner.main([]) == 1
    error = capsys.readouterr().err
    assert error == "error: outputs/a.json: cannot be written (No space left on device)\n"
