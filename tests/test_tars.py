"""Any source: folders, tars that stay packed, raw files and mixtures give the same graphs."""

import io
import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from utils import manifest, options, runner, synthetic, tars
from utils.dataset import DataError, check_files, find_data, index, read_graph
from utils.feature_tables import feature_tables
from utils.hlo import read_layout_pb, read_tile_pb
from utils.made_of import mark
from utils.structure import read_structure

ROOT = Path(__file__).resolve().parents[1]
REAL = Path(os.environ.get("TPUGRAPHS_DIR", ROOT.parent / "shared" / "tpugraphs"))
WHICH = ("layout:nlp:random", "tile:xla")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    counts = {"train": 2, "valid": 1, "test": 1}
    place = tmp_path_factory.mktemp("data") / "npz"
    return synthetic.write_data(place, 0, counts, 8, 2, collections=WHICH)


def pack(folder, target, parts, prefix="npz/"):
    """The release's tar of one collection and split."""
    with tarfile.open(target / f"npz_{'_'.join(parts)}.tar", "w") as archive:
        for path in sorted(folder.joinpath(*parts).glob("*.npz")):
            name = path.relative_to(folder).as_posix() if prefix is not None else path.name
            archive.add(path, (prefix or "") + name)
    return target


PARTS = [(*c.split(":"), split) for c in WHICH for split in ("train", "valid", "test")]


def same(a, b):
    for name in ("node_feat", "opcode", "edges", "runtime", "config_nodes", "row_layout", "codes",
                 "config_feat", "normalizer", "rounds"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("prefix", ["npz/", "./", "", None])
def test_tars_of_the_release_are_read_unopened(folder, tmp_path, prefix):
    for parts in PARTS:
        pack(folder, tmp_path, parts, prefix)
    plain, packed = index(folder), index(find_data(str(tmp_path), ROOT))
    assert [replace(f, path=None) for f in packed] == [replace(f, path=None) for f in plain]
    assert check_files(packed) == []
    for a, b in zip(plain, packed):
        assert b.path.parent != a.path.parent and a.size == b.size
        same(read_graph(a), read_graph(b))
        assert feature_tables(read_graph(a))[0].equals(feature_tables(read_graph(b))[0])
        np.testing.assert_array_equal(read_structure(a).edges, read_structure(b).edges)
    assert manifest.data_hashes(packed) == manifest.data_hashes(plain)
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".tar"] * 6  # nothing was unpacked
    first = packed[0].path
    assert mark("schema", first) == mark("schema", first) != mark("schema", packed[1].path)


def test_one_tar_can_be_the_data_of_a_run(folder, tmp_path):
    pack(folder, tmp_path, PARTS[0])
    tar = tmp_path / "npz_layout_nlp_random_train.tar"
    assert find_data(str(tar), ROOT) == tar
    chosen = options.parse(["--data", str(tar), "--out", str(tmp_path / "out")])
    plan = runner.make_plan(chosen, ROOT)
    assert plan.record["data"]["collections"]["layout:nlp:random"]["files"] == 2
    assert all(values["DATA_DIR"] == str(tar) for values in plan.values.values())


def test_a_mixture_takes_each_graph_once(folder, tmp_path):
    pack(folder, tmp_path, PARTS[0])  # in a tar and as files
    shutil.copytree(folder.joinpath(*PARTS[0]), tmp_path.joinpath("npz", *PARTS[0]))
    pack(folder, tmp_path, PARTS[3])  # in a tar only
    found = index(find_data(str(tmp_path), ROOT))
    assert [f.collection for f in found] == [WHICH[0]] * 2 + [WHICH[1]] * 2
    assert [f.path.is_file() for f in found] == [True, True, False, False]
    again = tmp_path.joinpath("copy", *PARTS[0])
    shutil.copytree(folder.joinpath(*PARTS[0]), again)
    with pytest.raises(DataError, match="the same graph is in .*: name one of the folders"):
        index(find_data(str(tmp_path), ROOT))


def real(*parts):
    path = REAL.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no real file {path}: set TPUGRAPHS_DIR")
    return path


def test_raw_files_stand_beside_npz_files(tmp_path):
    raw, tiles = real("pb/layout/unet_3d.4x4.bf16.pb"), real("pb/tile/op_tuning_data.pb")
    npz = real("npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz")
    for path, place in [(raw, "pb/layout/xla/default/train/a.pb"),
                        (raw, "pb/layout/xla/default/valid/unet_3d.4x4.bf16.pb"),
                        (npz, "npz/layout/xla/default/valid/unet_3d.4x4.bf16.npz")]:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / place)
    with tarfile.open(tmp_path / "pb_tile_xla_train.tar", "w") as archive:
        archive.add(tiles, "pb/tile/xla/train/kernels.pb")
    found = index(find_data(str(tmp_path), ROOT))
    kernels = read_tile_pb(tiles)
    assert [f.name for f in found] == ["a", "unet_3d.4x4.bf16"] + [
        f"kernels.{i}" for i in range(len(kernels))]
    assert check_files(found) == [] and not any(f.ours for f in found)
    assert [f.path.suffix for f in found[:2]] == [".pb", ".npz"]
    first, second = read_graph(found[0]), read_graph(found[1])
    np.testing.assert_array_equal(first.node_feat, second.node_feat)
    np.testing.assert_array_equal(first.runtime, read_layout_pb(raw)["config_runtime"])
    last = read_graph(found[-1])
    np.testing.assert_array_equal(last.config_feat, kernels[-1]["config_feat"])
    assert manifest.data_hashes(found)["tile:xla"]["files"] == len(kernels)


# --- tars that are not to be trusted, and damaged ones ---

def tar_of(path, names, data=b"x" * 700, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


GOOD = "npz/layout/nlp/random/train/a.npz"
BAD = {
    "a path upwards": ([GOOD, "../../evil.npz"], "a member leads out of its folder: '../../evil"),
    "a path upwards inside": (["npz/../../x.npz"], "a member leads out of its folder"),
    "an absolute path": (["/etc/evil.npz"], "a member leads out of its folder: '/etc/evil.npz'"),
    "a name twice": ([GOOD, GOOD], "holds 'npz/layout/nlp/random/train/a.npz' twice"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_tar_that_is_not_to_be_trusted_is_refused(tmp_path, case):
    names, what = BAD[case]
    path = tar_of(tmp_path / "bad.tar", names)
    for use in (lambda: find_data(str(tmp_path), ROOT), lambda: index(path)):
        with pytest.raises(DataError) as error:
            use()
        assert str(error.value).startswith(f"{path}: ") and what in str(error.value)
    assert list(tmp_path.iterdir()) == [path]


def test_tars_that_are_damaged_or_compressed(tmp_path):
    path = tar_of(tmp_path / "a.tar", [GOOD])
    whole = path.read_bytes()
    packed = tar_of(tmp_path / "packed", [GOOD], mode="w:gz").read_bytes()
    (tmp_path / "packed").unlink()
    for contents in (b"", b"no tar" * 200, whole[:900], packed):
        path.write_bytes(contents)
        with pytest.raises(DataError, match=r"a\.tar: ") as error:
            index(tmp_path)
        assert "\n" not in str(error.value)


def test_a_damaged_member_is_named_with_its_tar(tmp_path):
    path = tar_of(tmp_path / "a.tar", [GOOD])
    (file,) = index(path)
    (problem,) = check_files([file])
    assert problem.startswith(f"{path / GOOD}: damaged or not an npz file")
    (absent,) = check_files([replace(file, path=path / "npz" / "b.npz")])
    assert absent == f"{path / 'npz' / 'b.npz'}: no such file"


def test_links_and_folders_in_a_tar_are_passed_over(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, kind in [("npz", tarfile.DIRTYPE), ("npz/l.npz", tarfile.SYMTYPE)]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    assert tars.members(tmp_path / "a.tar") == {}


def test_a_member_can_be_read_from_anywhere(tmp_path):
    data = np.random.default_rng(0).bytes(5000)
    path = tar_of(tmp_path / "a.tar", ["x", "y", "z"], data)
    for name in ("x", "y", "z"):
        with tars.open_bytes(path / name) as stream:
            assert stream.read() == data and stream.read(1) == b""
            stream.seek(-10, io.SEEK_END)
            assert stream.tell() == 4990 and stream.read(100) == data[-10:]
            stream.seek(17)
            stream.seek(3, io.SEEK_CUR)
            assert stream.read(5) == data[20:25]
            with pytest.raises(ValueError):
                stream.seek(-1)
    assert tars.state(path / "y")[0] == 5000
