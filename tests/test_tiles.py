"""Tiles: the blocked kernels compute what the untiled ones do; configurations and columns."""

import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "data" / "programs")]

import kernels as zoo  # noqa: E402
from utils.schema import TILE_COLUMNS  # noqa: E402
from utils.xla.tiles import (  # noqa: E402
    MAX_REPEATED,
    MAX_TILES,
    MIN_MINOR,
    Tiling,
    Window,
    axis_sizes,
    blocked,
    config_feat,
    tile_configs,
)

TPUGRAPHS = Path(os.environ.get("TPUGRAPHS_DIR", ROOT.parent / "shared" / "tpugraphs"))


def array(*shape):
    return np.zeros(shape, np.float32)


def small_case(family, tiling):
    """Arguments with 11 elements along each axis and 12 elsewhere, and tiles of 4: all ragged."""
    kept = {letter: w.size for letter, w in zip("KL", tiling.windows.values())} | {"I": 1}
    sizes = {a: 11 for a in tiling.result if a.islower()}
    for letter in "".join(tiling.arguments):
        sizes.setdefault(letter, kept.get(letter, 12) if tiling.windows else 12)
    args = zoo.example_args(tiling, sizes, 0, zoo.INTEGER.get(family, {}))
    return args, [4 if a.islower() else sizes[a] for a in tiling.columns]


@pytest.mark.parametrize(
    "family, function, tiling",
    [pytest.param(f, *case, id=f"{f}-{prefix}") for f, prefix, case, _ in zoo.ZOO],
)
def test_blocked_equals_untiled(family, function, tiling):
    args, tile = small_case(family, tiling)
    expected = np.asarray(function(*args))
    got = np.asarray(jax.jit(blocked(function, tiling, tile))(*args))
    assert got.dtype == expected.dtype and got.shape == expected.shape
    assert got.shape == tuple(axis_sizes(tiling, args)[a] for a in tiling.result)
    assert np.ptp(expected) > 0  # a constant result would hide a tile in the wrong place
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def test_blocked_really_loops_unless_untiled():
    args, tiling = (array(16, 8), array(8, 24)), Tiling("mk,kn->mn")
    text = lambda tile: str(jax.make_jaxpr(blocked(lambda x, w: x @ w, tiling, tile))(*args))
    assert "dynamic_update_slice" in text((8, 24)) and "dynamic_slice" in text((8, 24))
    assert text((16, 24)) == str(jax.make_jaxpr(lambda x, w: x @ w)(*args))


def test_axis_sizes_golden():
    assert axis_sizes(Tiling("mk,kn->mn"), (array(4, 5), array(5, 6))) == {"m": 4, "k": 5, "n": 6}
    windows = {"h": Window(3, 2, 0, 1), "w": Window(5, 1, 2, 2)}
    tiling = Tiling("nhwi,KLio->nhwo", windows, kernel=True, summed="i")
    sizes = axis_sizes(tiling, (array(2, 28, 17, 16), array(3, 5, 16, 32)))
    assert sizes == {"n": 2, "h": 14, "w": 17, "i": 16, "K": 3, "L": 5, "o": 32}
    assert Window(3, 1, 8, 0, 4).reads(10) == 18  # nine steps and a span of 2 * 4 + 1


@pytest.mark.parametrize(
    "axes, shapes, message",
    [
        ("mk,kn->mn", [(4, 5), (6, 7)], "'k' is 5 and 6"),
        ("mk,kn->mn", [(4, 5)], "ranks"),
        ("mk->mn", [(4, 5)], "no argument has n"),
    ],
)
def test_axis_sizes_refuses(axes, shapes, message):
    with pytest.raises(ValueError, match=message):
        axis_sizes(Tiling(axes), [array(*s) for s in shapes])


def test_config_feat_golden():
    tiles = np.array([[256, 384], [64, 100]])
    feat = config_feat(Tiling("mk,kn->mn"), (array(256, 512), array(512, 384)), tiles)
    assert feat.dtype == np.float32 and feat.shape == (2, 24)
    expected = np.zeros((2, 24))
    expected[:, 8:16] = [[256, 384, 0, 0, 0, 0, 640, 98304], [64, 100, 0, 0, 0, 0, 164, 6400]]
    np.testing.assert_array_equal(feat, expected)


def test_config_feat_of_a_convolution_and_of_a_depthwise_one():
    same = Window(3, 1, 1, 1)
    windows = {"h": same, "w": same}
    tiling = Tiling("nhwi,KLio->nhwo", windows, kernel=True, summed="i")
    feat = config_feat(
        tiling, (array(2, 8, 8, 64), array(3, 3, 64, 128)), np.array([[1, 4, 8, 32, 16]])
    )
    columns = dict(zip(TILE_COLUMNS, feat[0]))
    assert [columns[f"kernel_bounds_{i}"] for i in range(6)] == [3, 3, 16, 32, 0, 0]
    assert columns["kernel_bounds_sum"] == 54 and columns["kernel_bounds_product"] == 4608
    assert [columns[f"output_bounds_{i}"] for i in range(6)] == [1, 4, 8, 32, 0, 0]
    assert columns["output_bounds_sum"] == 45 and columns["output_bounds_product"] == 1024
    assert not feat[0, 16:].any()

    tiling = Tiling("nhwc,KLIc->nhwc", windows, kernel=True)
    feat = config_feat(tiling, (array(1, 8, 8, 32), array(3, 3, 1, 32)), np.array([[1, 8, 8, 16]]))
    np.testing.assert_array_equal(feat[0, :8], [3, 3, 1, 16, 0, 0, 23, 144])


def test_zoo_configurations():
    for number, (name, _, args, tiling) in enumerate(zoo.kernels()):
        sizes = axis_sizes(tiling, args)
        full = np.array([sizes[a] for a in tiling.columns])
        tiles = tile_configs(tiling, args, 40, np.random.default_rng(number))
        assert 20 <= len(tiles) <= 40, name
        assert len(np.unique(tiles, axis=0)) == len(tiles), name
        np.testing.assert_array_equal(tiles[0], full)
        assert (tiles >= 1).all() and (tiles <= full).all(), name
        count = np.prod(-(-full // tiles), axis=1)
        assert count.max() <= MAX_TILES, name
        assert (count * tiles.prod(axis=1) <= MAX_REPEATED * full.prod()).all(), name
        thin = (tiles < MIN_MINOR) & (tiles < full)
        assert not thin[:, len(tiling.result) - 1 :].any(), name
        for i, letter in enumerate(tiling.columns):
            if letter.isupper():
                assert (tiles[:, i] == full[i]).all(), name
            if letter in tiling.summed:
                assert (full[i] % tiles[:, i] == 0).all(), name
        # The columns tell all configurations apart.
        assert len(np.unique(config_feat(tiling, args, tiles), axis=0)) == len(tiles), name


def test_configurations_repeat_with_the_seed_and_can_leave_out_the_untiled():
    tiling, args = Tiling("mk,kn->mn"), (array(256, 64), array(64, 200))
    draw = lambda **kw: tile_configs(tiling, args, 30, np.random.default_rng(3), **kw)
    np.testing.assert_array_equal(draw(), draw())
    without = draw(untiled=False)
    assert len(without) == 30 and not (without == [256, 200]).all(axis=1).any()
    sizes = draw()[:, 0]
    assert {256} <= set(sizes)  # whole
    assert any(256 % s for s in sizes) and any(256 % s == 0 and s < 256 for s in sizes)
    assert tile_configs(Tiling("n->n"), (array(4),), 30, np.random.default_rng(0)).tolist() == [[4]]


def test_zoo_splits():
    names = [name for name, *_ in zoo.kernels()]
    assert len(set(names)) == len(names) and list(zoo.SPLIT) == names
    assert set(zoo.FROM_TRAIN_FAMILIES) <= set(names)
    count = Counter(zoo.SPLIT.values())
    assert count["train"] >= 72 and count["valid"] >= 17 and count["test"] >= 17
    family = lambda name: name.split(".")[0]
    train = {family(n) for n in names if zoo.SPLIT[n] == "train"}
    for split in ("valid", "test"):
        members = [n for n in names if zoo.SPLIT[n] == split]
        new = sum(family(n) not in train for n in members)
        assert len(members) / 2 <= new < len(members), split


def test_release_writes_bounds_from_major_to_minor():
    """The order that ``config_feat`` follows: a copy of the release, layout {2,3,1,0}."""
    path = TPUGRAPHS / "npz/tile/xla/valid/inception_v3_batch_128_train_426e203f19335d17.npz"
    if not path.exists():
        pytest.skip(f"no real TpuGraphs files at {TPUGRAPHS}")
    with np.load(path, allow_pickle=False) as data:
        shape = data["node_feat"][-1, 21:25].astype(int)
        minor_to_major = data["node_feat"][-1, 134:138].astype(int)
        bounds = data["config_feat"][:, 8:12].astype(int)
    in_memory = shape[minor_to_major[::-1]]
    assert in_memory.tolist() == [1, 1, 320, 1280]
    most = -(-in_memory // [1, 1, 8, 128])  # the minor two count in registers of 8 x 128
    assert (bounds <= most).all() and bounds[:, 3].max() == most[3] == 10
    assert bounds[:, 3].max() > -(-shape[3] // 128)  # so it is not the order of the dimensions
