"""Large files and streams: what the fast reader does must be what zipfile and numpy do."""

import io
import zipfile

import numpy as np
import pytest

from utils import benchmark_read, coding, npz
from utils.checks import STREAMED
from utils.coding import decode, read_graph
from utils.key_table import KeyTable
from utils.dataset import DataError, GraphFile, check_files


def member(data: bytes, method=zipfile.ZIP_DEFLATED) -> zipfile.ZipFile:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("x.npy", data)
    return zipfile.ZipFile(buffer)


DATA = {
    "nothing": b"",
    "one byte": b"x",
    "runs": b"a" * 3_000_000,
    "noise": np.random.default_rng(0).bytes(200_000),
    "digits": np.random.default_rng(1).integers(0, 3, 300_000).astype(np.float32).tobytes(),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2])
def test_a_member_is_read_as_zipfile_reads_it(name, method):
    data = DATA[name]
    with npz._open_member(member(data, method), "x") as stream:
        start = stream.read(7)
        rest = b"".join(iter(lambda: stream.read(100_003), b""))
    assert start + rest == data


@pytest.mark.skipif(npz.igzip_lib is None, reason="isal is not installed")
def test_a_flipped_bit_of_a_deflated_member_is_noticed_unless_it_changes_nothing():
    data = np.arange(300, dtype=np.int64).tobytes()
    good = member(data)
    info, raw = good.getinfo("x.npy"), bytearray(good.fp.getvalue())
    first = info.header_offset + 30 + len("x.npy")
    noticed = 0
    for at in range(first, first + info.compress_size):
        spoilt = raw.copy()
        spoilt[at] ^= 0x10
        try:
            with npz._open_member(zipfile.ZipFile(io.BytesIO(spoilt)), "x") as stream:
                read = b"".join(iter(lambda: stream.read(1000), b""))
        except npz.READ_ERRORS:
            noticed += 1
        else:
            assert read == data  # padding after the last symbol
    assert noticed > 0.98 * info.compress_size


def test_without_isal_the_same_is_read(tmp_path, monkeypatch):
    file = large(tmp_path, 50, 5)
    fast = read_graph(file)
    monkeypatch.setattr(npz, "igzip_lib", None)
    slow = read_graph(file)
    for name in ("node_feat", "edges", "runtime", "row_start", "row_layout", "codes"):
        np.testing.assert_array_equal(getattr(slow, name), getattr(fast, name))


def large(folder, configs, nodes, graph_nodes=0) -> GraphFile:
    path = benchmark_read.write_large(folder / "large.npz", configs, nodes, graph_nodes)
    return GraphFile("layout:xla:random", "train", "large", path)


def test_a_large_file_is_valid_and_of_the_size_asked_for(tmp_path):
    file = large(tmp_path, 4500, 12, 500)
    assert check_files([file]) == []
    graph = read_graph(file)
    assert graph.configs == 4500 and len(graph.config_nodes) >= 12
    assert 400 < len(graph.opcode) <= 500
    assert graph.node_feat[:, 0].sum() == 1
    with np.load(file.path) as arrays:
        np.testing.assert_array_equal(decode(graph), arrays[STREAMED])
    parts = [graph.codes[i : i + 2000] for i in (0, 2000)]  # mixed, not repeated
    assert not (parts[0] == parts[1]).all(1).any()
    np.testing.assert_array_equal(np.sort(parts[0], 0), np.sort(parts[1], 0))


def test_the_comparison_names_each_way_of_reading(tmp_path):
    lines = benchmark_read.compare(large(tmp_path, 100, 4).path, repeats=1)
    assert lines[0].endswith("MB inflated")
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "inflating alone (zlib)", "coded graph", "np.load", "statistics (02)",
        "message passing (03)", "features (04)", "rows of the cost tables",
        "scores by the cost tables"]


def test_peak_memory_is_far_below_the_expanded_array(tmp_path):
    file = large(tmp_path, 20_000, 60)
    expanded_mb = 20_000 * 60 * 72 / 1e6
    cost = benchmark_read.best(lambda: read_graph(file), 1)
    idle = benchmark_read.best(lambda: None, 1)
    if cost.peak_mb is None:
        pytest.skip("no /proc")
    assert cost.peak_mb - idle.peak_mb < 0.6 * expanded_mb


# --- the table of known rows ---

def test_codes_are_numbers_by_first_appearance_whatever_collides():
    rng = np.random.default_rng(0)
    rows = KeyTable(3, coding.KEYS)
    rows.bits = 2  # four places: nearly everything collides, then the table grows
    rows._fill(rows.known, rows.code)
    seen = [{}, {}, {}]
    for _ in range(40):
        keys = rng.integers(0, 60, 30) * 10**9 + rng.integers(0, 3, 30) * coding.KEYS
        codes = rows.codes_of(keys)
        for key in np.unique(keys):  # new keys of one block are numbered in their order
            known = seen[key // coding.KEYS]
            known.setdefault(key, len(known))
        assert codes.tolist() == [seen[key // coding.KEYS][key] for key in keys.tolist()]
    assert rows.count.tolist() == [len(known) for known in seen]
    assert rows.known.tolist() == sorted(key for known in seen for key in known)
    assert (1 << rows.bits) >= 4 * len(rows.known)


def test_too_many_configurable_nodes_are_refused(tmp_path, monkeypatch):
    file = large(tmp_path, 10, 5)
    monkeypatch.setattr(coding, "MAX_NODES", 4)
    with pytest.raises(DataError, match="configurable nodes, at most 4 work"):
        read_graph(file)
