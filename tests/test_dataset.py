"""Reading: every array comes back exactly, and every bad file gives one clear line."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from utils import coding, files
from utils.dataset import (
    DataError, GraphFile, check_files, config_sum, decode, deduplicate, family_of, find_data, index,
    pair_sum, read_graph, slot_rows,
)

ROOT = Path(__file__).resolve().parents[1]
REAL = Path(os.environ.get("TPUGRAPHS_DIR", ROOT.parent / "shared" / "tpugraphs"))


def layout_arrays(configs=40, nodes=5, n=12, seed=0, values=(-1, 6)):
    rng = np.random.default_rng(seed)
    edges = np.array([(u, v) for u in range(1, n) for v in rng.choice(u, 1)], np.int64)
    return {
        "node_feat": rng.integers(0, 9, (n, 140)).astype(np.float32),
        "node_opcode": rng.integers(0, 120, n).astype(np.uint8),
        "edge_index": edges,
        "node_config_ids": np.sort(rng.choice(n, nodes, replace=False)),
        "node_config_feat": rng.integers(*values, (configs, nodes, 18)).astype(np.float32),
        "config_runtime": rng.integers(1, 1 << 50, configs),
        "node_splits": np.zeros((1, 2), np.int64),
    }


def tile_arrays(configs=20, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {k: layout_arrays()[k] for k in ("node_feat", "node_opcode", "edge_index")}
    return arrays | {
        "config_feat": rng.integers(0, 3, (configs, 24)).astype(np.float32),
        "config_runtime": rng.integers(1, 1 << 40, configs),
        "config_runtime_normalizers": rng.integers(1, 1 << 40, configs),
    }


def write(folder, arrays, collection="layout:xla:random", split="train", name="unet3d"):
    path = folder / Path(*collection.split(":")) / split / f"{name}.npz"
    files.save_npz(path, **arrays)
    return GraphFile(collection, split, name, path)


def real(*parts):
    path = REAL.joinpath("npz", *parts)
    if not path.exists():
        pytest.skip(f"no real file {path}: set TPUGRAPHS_DIR")
    return GraphFile(":".join(parts[:-2]), parts[-2], path.name.removesuffix(".npz"), path)


# --- layout: coding ---

def test_round_trip_of_every_value_and_extreme_vectors(tmp_path):
    arrays = layout_arrays(configs=60)
    feat = arrays["node_config_feat"]
    feat[0], feat[1], feat[2, :, ::2], feat[3, :, 17] = -1, 5, 5, 5
    graph = read_graph(write(tmp_path, arrays))
    assert set(np.unique(feat)) == set(range(-1, 6))
    np.testing.assert_array_equal(decode(graph), feat)
    np.testing.assert_array_equal(decode(graph, np.array([7, 3])), feat[[7, 3]])
    for key, values in [("node_feat", graph.node_feat), ("node_opcode", graph.opcode),
                        ("edge_index", graph.edges), ("config_runtime", graph.runtime),
                        ("node_config_ids", graph.config_nodes)]:
        np.testing.assert_array_equal(values, arrays[key])
        assert values.dtype == arrays[key].dtype
    assert graph.rounds is None and graph.config_feat is None and graph.normalizer is None
    assert graph.labelled and graph.configs == 60


def test_keys_are_exact_at_both_ends():
    rows = np.array([[-1] * 18, [5] * 18, [-1] * 17 + [0], [-1] * 17 + [5], [0] + [-1] * 17])
    file = GraphFile("layout:xla:random", "train", "x", Path("x"))
    nodes = 3
    block = np.repeat(rows.astype(np.float32)[:, None], nodes, 1)
    keys = coding._keys(file, 0, block).reshape(-1, nodes)
    assert keys[:, 0].tolist() == [0, 7**18 - 1, 7**17, 6 * 7**17, 1]
    np.testing.assert_array_equal(keys - keys[:, :1], np.tile(np.arange(nodes) * 7**18, (5, 1)))
    np.testing.assert_array_equal(coding._decode(keys[:, 0]), rows)


@pytest.mark.parametrize("per_block", [1, 7, 39, 40, 41])
def test_block_boundaries_change_nothing(tmp_path, monkeypatch, per_block):
    file = write(tmp_path, layout_arrays(values=(0, 2)))
    whole = read_graph(file)
    monkeypatch.setattr(coding, "BLOCK_BYTES", per_block * 5 * 18 * 4)
    cut = read_graph(file)
    for name in ("row_start", "row_layout", "codes"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(whole, name))


def test_rows_are_distinct_and_in_order_whatever_the_order_of_configurations(tmp_path):
    arrays = layout_arrays(configs=30, values=(0, 3))
    arrays["node_config_feat"][:, :, 2:] = -1  # few distinct rows, so most repeat
    graph = read_graph(write(tmp_path, arrays))
    order = np.random.default_rng(1).permutation(30)
    arrays["node_config_feat"] = arrays["node_config_feat"][order]
    shuffled = read_graph(write(tmp_path, arrays, name="shuffled"))
    np.testing.assert_array_equal(shuffled.row_layout, graph.row_layout)
    np.testing.assert_array_equal(shuffled.codes, graph.codes[order])
    pairs = np.column_stack([graph.row_node, graph.row_layout])
    assert len(np.unique(pairs, axis=0)) == len(pairs) == graph.row_start[-1]
    assert graph.codes.dtype == np.uint8 and graph.row_layout.dtype == np.int8


def test_more_than_256_rows_of_a_node_need_two_bytes(tmp_path):
    arrays = layout_arrays(configs=700)
    graph = read_graph(write(tmp_path, arrays))
    assert graph.codes.dtype == np.uint16
    np.testing.assert_array_equal(decode(graph), arrays["node_config_feat"])


# --- sums ---

def test_config_sum_is_the_sum_of_looked_up_rows(tmp_path):
    graph = read_graph(write(tmp_path, layout_arrays(configs=300, values=(0, 2))))
    table = np.random.default_rng(0).normal(size=(graph.row_start[-1], 3))
    expected = table[graph.row_start[:-1] + graph.codes.astype(int)].sum(1)
    np.testing.assert_allclose(config_sum(graph, table), expected, rtol=1e-12)
    np.testing.assert_allclose(config_sum(graph, table[:, 0]), expected[:, 0], rtol=1e-12)
    np.testing.assert_array_equal(config_sum(graph, table), config_sum(graph, table, chunk=7))
    ones = config_sum(graph, np.ones(len(table), bool))
    assert ones.dtype == np.float64 and (ones == 5).all()


def test_config_sum_by_hand(tmp_path):
    arrays = layout_arrays(configs=3, nodes=2)
    arrays["node_config_feat"][:] = -1
    arrays["node_config_feat"][1, 0, 17] = 2  # the only deviation of node 0
    arrays["node_config_feat"][2, 1, 0] = 4  # the only deviation of node 1
    graph = read_graph(write(tmp_path, arrays))
    assert graph.row_start.tolist() == [0, 2, 4] and graph.row_node.tolist() == [0, 0, 1, 1]
    assert graph.codes.tolist() == [[0, 0], [1, 0], [0, 1]]
    assert config_sum(graph, np.array([1, 10, 100, 1000])).tolist() == [101, 110, 1001]
    differ = [np.array([[0, 1], [1, 0]])]
    assert pair_sum(graph, [0], [1], differ).tolist() == [0, 1, 1]
    assert pair_sum(graph, [0, 1], [1, 0], differ * 2).tolist() == [0, 2, 2]


def test_slot_rows_give_the_rows_back(tmp_path):
    graph = read_graph(write(tmp_path, layout_arrays(configs=300, values=(0, 2))))
    node, slot, layout, row_slot = slot_rows(graph)
    np.testing.assert_array_equal(layout[row_slot].reshape(-1, 18), graph.row_layout)
    np.testing.assert_array_equal(node[row_slot], np.repeat(graph.row_node[:, None], 3, 1))
    assert (slot[row_slot] == [0, 1, 2]).all()
    assert len(np.unique(np.column_stack([node, slot, layout]), axis=0)) == len(node)


# --- repeats ---

def test_repeats_are_counted_and_combined_by_their_median(tmp_path):
    arrays = layout_arrays(configs=4)
    order = [2, 0, 2, 1, 2, 0]
    big = 1 << 53  # above float64's whole numbers
    arrays["node_config_feat"] = arrays["node_config_feat"][order]
    arrays["config_runtime"] = np.array([9, big + 1, 1, 7, 4, big + 4], np.int64)
    arrays["config_runtime_rounds"] = np.column_stack([arrays["config_runtime"], np.arange(6)])
    graph = read_graph(write(tmp_path, arrays))
    distinct, inverse, count = deduplicate(graph)
    assert inverse.tolist() == [0, 1, 0, 2, 0, 1] and count.tolist() == [3, 2, 1]
    assert distinct.runtime.tolist() == [4, big + 3, 7]  # 2.5 above big: halves round up
    assert distinct.runtime.dtype == np.int64
    assert distinct.rounds.tolist() == [[4, 2], [big + 3, 3], [7, 3]]
    np.testing.assert_array_equal(distinct.codes[inverse], graph.codes)
    np.testing.assert_array_equal(decode(distinct)[inverse], arrays["node_config_feat"])


def test_many_columns_of_many_values_stay_exact(tmp_path):
    arrays = layout_arrays(configs=500, nodes=12, values=(0, 2))
    rng = np.random.default_rng(3)
    arrays["node_config_feat"] = arrays["node_config_feat"][rng.integers(0, 500, 2000)]
    arrays["config_runtime"] = rng.integers(1, 1000, 2000)
    graph = read_graph(write(tmp_path, arrays))
    distinct, inverse, count = deduplicate(graph)
    expected = np.unique(graph.codes, axis=0, return_counts=True)
    order = np.lexsort(distinct.codes.T[::-1])
    np.testing.assert_array_equal(distinct.codes[order], expected[0])
    np.testing.assert_array_equal(count[order], expected[1])
    assert np.bincount(inverse).tolist() == count.tolist()


def test_tile_round_trip_and_repeats(tmp_path):
    arrays = tile_arrays()
    arrays["config_feat"][5] = arrays["config_feat"][2]
    graph = read_graph(write(tmp_path, arrays, "tile:xla", name="ssd_12"))
    np.testing.assert_array_equal(graph.config_feat, arrays["config_feat"])
    runtime, normalizer = arrays["config_runtime"], arrays["config_runtime_normalizers"]
    np.testing.assert_array_equal(graph.target, runtime / normalizer)
    assert graph.codes is None
    distinct, inverse, count = deduplicate(graph)
    assert distinct.configs == 19 and count[2] == 2 and inverse[5] == 2 and inverse[19] == 18
    np.testing.assert_array_equal(distinct.config_feat[inverse], arrays["config_feat"])
    assert distinct.runtime[2] == (int(runtime[2]) + int(runtime[5]) + 1) // 2


def test_a_file_of_zero_runtimes_is_unlabelled(tmp_path):
    arrays = layout_arrays()
    arrays["config_runtime"][:] = 0
    graph = read_graph(write(tmp_path, arrays, split="test"))
    assert not graph.labelled and graph.target.tolist() == [0.0] * 40


# --- bad files ---

def bad(**changes):
    """A way to spoil good arrays: new values for keys, None removes a key."""
    def spoil(arrays):
        for key, change in changes.items():
            if change is None:
                del arrays[key]
            else:
                arrays[key] = change(arrays[key]) if callable(change) else change
    return spoil


def with_value(at, value):
    def change(array):
        array = array.copy()
        array[at] = value
        return array
    return change


BAD = {
    "missing key": (bad(edge_index=None), "key edge_index is missing"),
    "two missing keys": (bad(edge_index=None, node_feat=None), "node_feat, edge_index is missing"),
    "NaN features": (bad(node_feat=with_value((3, 5), np.nan)), r"NaN or infinite.*\(node 3\)"),
    "infinite features": (bad(node_feat=with_value((slice(2, 5), 0), np.inf)), "node 2 and 2 more"),
    "float64 features": (bad(node_feat=np.float64), "node_feat is float64, expected float32"),
    "int32 runtimes": (bad(config_runtime=np.int32), "config_runtime is int32, expected int64"),
    "big-endian": (bad(config_runtime=lambda a: a.astype(">i8")), "config_runtime is >i8"),
    "wrong rank": (bad(node_opcode=lambda a: a[:, None]), r"node_opcode has shape \(12, 1\)"),
    "other counts": (bad(config_runtime=lambda a: a[:-1]), r"config_runtime has shape \(39,\)"),
    "70 columns": (bad(node_feat=lambda a: a[:, :70]), "node_feat has 70 of 140 columns. Were const"),
    "10 columns": (bad(node_config_feat=lambda a: a[..., :10]), "feat has 10 of 18 columns. Were"),
    "10 and 70 columns": (
        bad(node_config_feat=lambda a: a[..., :10], node_feat=lambda a: a[:, :70]),
        "node_feat has 70 of 140 columns, node_config_feat has 10 of 18 columns. Were constant"),
    "19 columns": (bad(node_config_feat=lambda a: np.dstack([a, a[..., :1]])), "expected 18 where"),
    "Fortran order": (bad(node_config_feat=np.asfortranarray), "node_config_feat is in Fortran"),
    "no configuration": (
        bad(config_runtime=lambda a: a[:0], node_config_feat=lambda a: a[:0]), "no configuration"),
    "edge too high": (bad(edge_index=with_value((0, 0), 12)), "outside the 12 nodes"),
    "edge negative": (bad(edge_index=with_value((0, 1), -1)), "outside the 12 nodes"),
    "self edge": (bad(edge_index=with_value(0, 4)), "an edge from a node to itself"),
    "id too high": (bad(node_config_ids=with_value(0, 99)), "node_config_ids points outside"),
    "id twice": (bad(node_config_ids=lambda a: a * 0), "lists a node twice"),
    "negative runtime": (bad(config_runtime=with_value(7, -1)), "config_runtime is negative"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_gives_one_line_that_names_it(tmp_path, case):
    spoil, message = BAD[case]
    arrays = layout_arrays()
    spoil(arrays)
    good, file = write(tmp_path, layout_arrays(), name="good"), write(tmp_path, arrays)
    (problem,) = check_files([good, file])
    with pytest.raises(DataError, match=message) as error:
        read_graph(file)
    assert str(error.value) == problem
    assert problem.startswith(f"{file.path}: ") and "\n" not in problem


def test_object_arrays_are_never_unpickled(tmp_path):
    file = write(tmp_path, layout_arrays())
    arrays = layout_arrays() | {"config_runtime": np.array([print] * 40, object)}
    np.savez(file.path, **arrays)
    (problem,) = check_files([file])
    assert "config_runtime is not a plain array (holds Python objects)" in problem


@pytest.mark.parametrize("keep", [0, 10, 0.3, 0.9])
def test_a_truncated_file(tmp_path, keep):
    file = write(tmp_path, layout_arrays())
    data = file.path.read_bytes()
    file.path.write_bytes(data[: int(keep * len(data)) if keep < 1 else keep])
    (problem,) = check_files([file])
    assert problem.startswith(f"{file.path}: damaged or not an npz file") and "\n" not in problem
    with pytest.raises(DataError):
        read_graph(file)


def test_a_flipped_bit_is_found_by_the_checksum(tmp_path):
    arrays = layout_arrays(configs=2000)
    file = write(tmp_path, arrays)
    np.savez(file.path, **arrays)  # stored, so only the checksum can tell
    with zipfile.ZipFile(file.path) as archive:
        info = archive.getinfo("node_config_feat.npy")
    data = bytearray(file.path.read_bytes())
    data[info.header_offset + 4000 + 3] ^= 0x02
    file.path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="unet3d.npz"):
        read_graph(file)


def test_a_header_that_promises_terabytes(tmp_path):
    file = write(tmp_path, layout_arrays())
    with zipfile.ZipFile(file.path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (10**11, 5, 18)}
    np.lib.format.write_array_header_1_0(header, shape)
    members["node_config_feat.npy"] = header.getvalue() + bytes(40 * 5 * 18 * 4)
    with zipfile.ZipFile(file.path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    (problem,) = check_files([file])
    assert "node_config_feat promises 36,000,000,000,000 bytes but holds 14,400" in problem


def test_headers_of_nonsense(tmp_path):
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"
    for old, new in [(b"}", b"("), (b"<f4", b"<q9"), (b"(3,)", b"(-3,)"), (b"'shape'", b"'size_'"),
                     (b"(3,)", b"1e99"), (b"{", b"["), (b"'descr'", b"\xff\xfe")]:
        file = write(tmp_path, layout_arrays())
        with zipfile.ZipFile(file.path, "a") as archive:
            body = text.replace(old, new).ljust(117) + b"\n"
            archive.writestr("extra.npy", b"\x93NUMPY\x01\x00" + bytes([118, 0]) + body + bytes(12))
        (problem,) = check_files([file])
        assert problem.startswith(f"{file.path}: extra is not a plain array (")
        assert "\n" not in problem


def test_all_problems_are_reported_at_once(tmp_path):
    arrays = layout_arrays()
    del arrays["node_feat"]
    first = write(tmp_path, arrays, name="a")
    second = write(tmp_path, layout_arrays(), name="b")
    second.path.write_bytes(b"not a zip")
    third = write(tmp_path, tile_arrays() | {"config_runtime_normalizers": np.zeros(20, np.int64)},
                  "tile:xla")
    fourth = write(tmp_path, layout_arrays(), split="valid", name="c")
    fifth = write(tmp_path, layout_arrays(), split="test", name="c")
    problems = check_files([first, second, third, fourth, fifth])
    assert [str(f.path) in p for f, p in zip((first, second, third, fifth), problems)] == [True] * 4
    assert "not positive" in problems[2] and "the same name is in the valid split" in problems[3]


# --- folders and names ---

@pytest.mark.parametrize("parent", ["", "npz", "npz_all/npz", "a/b/c"])
def test_the_data_is_found_below_any_parent(tmp_path, parent):
    inner = tmp_path / "given" / parent
    write(inner, layout_arrays())
    write(inner, tile_arrays(), "tile:xla")
    assert find_data(str(tmp_path / "given"), ROOT) == inner
    assert find_data("given", tmp_path) == inner


def test_without_a_folder_the_sample_is_taken(tmp_path):
    write(tmp_path / "data" / "sample", tile_arrays(), "tile:xla")
    assert find_data(None, tmp_path) == tmp_path / "data" / "sample"
    assert find_data("", tmp_path) == tmp_path / "data" / "sample"


def test_folders_that_are_none(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "one.npz").write_bytes(b"")
    tarfile.open(tmp_path / "none.tar", "w").close()
    write(tmp_path / "other" / "x", layout_arrays(), "nlp:default")
    for name, message in [("absent", "absent: no such folder"), ("empty", "no .npz file in"),
                          ("one.npz", "one.npz: a file, not a folder, expected a folder or tar"),
                          ("none.tar", "none.tar: no graph in this tar"),
                          ("other", "not a TpuGraphs folder, expected layout/")]:
        with pytest.raises(DataError, match=message):
            find_data(str(tmp_path / name), ROOT)


def test_index_is_in_the_order_of_the_competition(tmp_path):
    for collection, split, name in [("tile:xla", "train", "b"), ("layout:nlp:default", "test", "a"),
                                    ("layout:nlp:default", "train", "z"),
                                    ("layout:nlp:default", "train", "k.v"),
                                    ("layout:xla:random", "valid", "a")]:
        arrays = tile_arrays() if collection == "tile:xla" else layout_arrays()
        write(tmp_path, arrays, collection, split, name)
    found = index(tmp_path)
    assert [f.id for f in found] == [
        "layout:xla:random:a", "layout:nlp:default:k.v", "layout:nlp:default:z",
        "layout:nlp:default:a", "tile:xla:b"]
    assert [f.id for f in index(tmp_path, ["tile:xla"])] == ["tile:xla:b"]
    with pytest.raises(DataError, match="did you mean layout:nlp:random.*There are .*tile:xla"):
        index(tmp_path, ["layout:nlp:randm"])
    with pytest.raises(DataError, match="no graph of layout:nlp:random"):
        index(tmp_path, ["layout:nlp:random"])


def test_our_files_are_known_by_their_rounds(tmp_path):
    arrays = layout_arrays()
    write(tmp_path, arrays, name="unet.small.b8")
    assert not index(tmp_path)[0].ours
    rounds = np.ones((40, 8), np.int64)
    write(tmp_path, arrays | {"config_runtime_rounds": rounds}, name="unet.small.b8")
    (file,) = index(tmp_path)
    assert file.ours and file.family == "unet" and read_graph(file).rounds.shape == (40, 8)


def test_families():
    assert family_of("lstm_cell.fwd.b32", ours=True) == "lstm_cell"
    release = {
        "mask_rcnn_resnet50.4x4.bf16.performance": "mask_rcnn",
        "mlperf_maskrcnn_batch_2": "mask_rcnn",
        "unet3d": "unet", "unet_3d.4x4.bf16": "unet", "mlperf_bert_batch_24_2x2": "bert",
        "tf2_bert_squad_dynamic": "bert", "experts_pubmed_batch_size_32_test": "bert",
        "small_bert_bert_en_uncased_L-6_H-768_A-12_batch_size_32_test": "bert",
        "albert_en_base_batch_size_16_test": "albert",
        "electra_base_batch_size_16_train": "electra",
        "inference_mlperf_ssd_1200_batch_128": "ssd", "mlperf_nmt_batch_64": "nmt",
        "resnet_v1_50_official_batch_128_bf16": "resnet", "openai_v0_rnn_optimized": "openai_rnn",
        "retinanet.2x2.fp32_-342c949e14733d96": "retinanet", "ncf.2x2.fp32": "ncf",
        "inception_v3_batch_128_train_426e203f19335d17": "inception", "brax_es": "brax",
        "mobilenet_v2": "mobilenet", "something_new_7.x": "something_new",
        "cd708819d3f5103afd6460b15e74eaf3": None,
    }
    assert {name: family_of(name, ours=False) for name in release} == release


# --- files ---

def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "new" / "a.json"
    files.write_json(path, {"x": np.float32(0.5), "n": np.arange(2), "bad": float("nan")})
    before = path.read_text()
    assert '"x": 0.5' in before and '"bad": null' in before
    with pytest.raises(RuntimeError):
        with files.atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError
    assert path.read_text() == before and os.listdir(path.parent) == ["a.json"]


# --- the real files ---

@pytest.mark.parametrize("parts, sizes", [
    (("layout", "xla", "default", "train", "unet3d.npz"), (2774, 56, 1159, 681)),
    (("layout", "xla", "default", "valid", "unet_3d.4x4.bf16.npz"), (3163, 62, 1965, 1469)),
    (("layout", "xla", "random", "train", "openai_v0_rnn_optimized.npz"), (1277, 62, 20, 1)),
])
def test_real_files(parts, sizes):
    graph = read_graph(real(*parts))
    distinct, inverse, count = deduplicate(graph)
    assert (len(graph.node_feat), len(graph.config_nodes), graph.configs, distinct.configs) == sizes
    assert count.sum() == graph.configs and graph.labelled
    with np.load(graph.file.path, allow_pickle=False) as arrays:
        np.testing.assert_array_equal(decode(graph), arrays["node_config_feat"])
        np.testing.assert_array_equal(decode(distinct)[inverse], arrays["node_config_feat"])
        np.testing.assert_array_equal(graph.edges, arrays["edge_index"])
