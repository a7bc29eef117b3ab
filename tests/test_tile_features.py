"""Features of tiles: counts, remainders and what a tile reads, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from hand_graphs import CONVOLUTION, structure
from utils.coding import Graph
from utils.layout_rows import byte_count
from utils.schema import TILE_COLUMNS
from utils.tile_features import result_tiles, tile_count, tile_features

MATMUL = [
    ("parameter", (100, 64), (), {}),
    ("parameter", (64, 200), (), {}),
    ("dot", (100, 200), (0, 1), {}),
    ("parameter", (200,), (), {}),
    ("broadcast", (100, 200), (3,), {"dimensions_0": 1}),
    ("add", (100, 200), (2, 4), {"root": True}),
]


def tile_graph(nodes, bounds, kernel=()) -> Graph:
    feat = np.zeros((len(bounds), 24), np.float32)
    for part, lists in (("output", bounds), ("kernel", kernel)):
        for i, listed in enumerate(lists):
            start = TILE_COLUMNS.index(f"{part}_bounds_0")
            feat[i, start : start + len(listed)] = listed
            feat[i, start + 6 : start + 8] = np.sum(listed), np.prod(listed)
    runtime = np.arange(1, len(bounds) + 1)
    return Graph(file=None, **structure(nodes), runtime=runtime, config_feat=feat,
                 normalizer=np.ones_like(runtime))


def test_number_of_tiles():
    graph = tile_graph(MATMUL, [(32, 128), (100, 200), (100, 50), (0, 0)])
    assert tile_count(graph).tolist() == [4 * 2, 1, 4, 1]
    assert byte_count(graph).tolist() == [8, 1, 4, 1]


def test_bounds_in_registers():
    graph = tile_graph(MATMUL, [(2, 1), (13, 2)])  # 13 x 2 registers of 8 x 128 cover all
    assert result_tiles(graph)[2].tolist() == [[128, 16], [200, 100]]  # minor-most first
    assert tile_count(graph).tolist() == [2 * 7, 1]


def test_bounds_follow_the_layout_in_memory():
    swapped = {"root": True, "layout_minor_to_major_0": 0, "layout_minor_to_major_1": 1}
    graph = tile_graph([*MATMUL[:2], ("dot", (100, 200), (0, 1), swapped)], [(50, 20)])
    _, sizes, bounds = result_tiles(graph)
    assert sizes.tolist() == [100, 200] and bounds.tolist() == [[20, 50]]
    features = tile_features(graph)
    read = 4 * 64 * (20 + 50)  # 20 rows of the left, 50 columns of the right operand
    assert features["tile_input_bytes"].to_list() == [read]


def test_values_by_hand():
    features = tile_features(tile_graph(MATMUL, [(32, 128), (100, 200)]))

    def check(name, *values):
        assert features[name].to_numpy() == pytest.approx(np.array(values)), name

    read = 4 * (32 * 64 + 64 * 128 + 128)
    everything = 4 * (100 * 64 + 64 * 200 + 200)
    check("tile_input_bytes", read, everything)
    check("tile_working_set_bytes", read + 4 * 32 * 128, everything + 4 * 20000)
    check("tile_moved_bytes", 8 * (read + 4 * 32 * 128), everything + 4 * 20000)
    check("tile_set_share", (read + 4 * 32 * 128) / (everything + 80000), 1)
    check("tile_covered", 128 * 256 / 20000, 1)
    check("tile_minor_ratio", 128 / 200, 1)
    check("tile_minor_tiles", 2, 1)
    check("tile_second_covered", 128 / 100, 1)
    check("tile_minor_padding_128", 1, 256 / 200)
    check("tile_minor_over_second", 2, 1)
    check("tile_rel_count", 1.5, -1.5)  # log2 of 8 and of 1
    check("tile_output_bounds_0", 32, 100)
    assert features["tile_third_bound"].is_nan().all()


def test_convolution_reads_a_window_more():
    graph = tile_graph(CONVOLUTION, [(1, 4, 8, 16)], [(3, 3, 3, 8)])
    features = tile_features(graph)
    # one of two images, 4 + 2 of 8 rows, all 8 columns; the whole kernel
    assert features["tile_input_bytes"].item() == 4 * (6 * 8 * 3 + 9 * 3 * 16)
    assert features["tile_kernel_share"].item() == pytest.approx(0.5)


def test_configurations_in_another_order():
    graph = tile_graph(MATMUL, [(32, 128), (100, 200), (10, 40), (25, 50)])
    order = np.array([2, 0, 3, 1])
    shuffled = replace(graph, config_feat=graph.config_feat[order])
    count = np.array([1, 2, 3, 4])
    expected = tile_features(graph, count)[order.tolist()].to_numpy()
    np.testing.assert_allclose(tile_features(shuffled, count[order]).to_numpy(), expected, 1e-6)
    assert np.isnan(expected).any() and not np.isinf(expected).any()
