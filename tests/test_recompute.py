"""Work that is fused with a tensor, and work that is repeated in each of its users."""

import numpy as np
import pytest

from hand_graphs import FREE, ODD, PLAIN, layout_graph
from utils.layout_features import layout_features
from utils.recompute import SLOW, fused_work, repeated_work

SHAPE = (4, 8)  # 128 bytes
NODES = [
    ("parameter", SHAPE, (), {}),
    ("tanh", SHAPE, (0,), {}),
    ("add", SHAPE, (0, 1), {}),  # nothing twice
    ("negate", SHAPE, (2,), {}),
    ("multiply", SHAPE, (2, 3), {}),  # evaluates 2, and 1 before it, twice
    ("parameter", (8, 2), (), {}),
    ("dot", (4, 2), (4, 5), {}),
    ("tanh", (4, 2), (6,), {"root": True}),
]
ALL = (SLOW + 3) * 128 + SLOW * 32


def two_dots(first, second):
    return layout_graph(NODES, [{6: first}, {6: second}])


def test_repeated_work_by_hand():
    graph = two_dots((FREE,) * 3, (PLAIN,) * 3)
    found = repeated_work(graph, [1, 2, 3, 4, 5, 6])
    again = (SLOW + 1) * 128 / ALL  # 1 and 2
    assert found == pytest.approx({1: 0, 2: 0, 3: 0, 4: again})  # 5 and 6 are stored anyway


def test_it_doubles_along_a_chain_and_ends():
    nodes = [("parameter", SHAPE, (), {}), ("negate", SHAPE, (0,), {})]
    for _ in range(40):
        last = len(nodes) - 1
        nodes += [("abs", SHAPE, (last,), {}), ("add", SHAPE, (last, last + 1), {})]
    nodes += [("parameter", (8, 2), (), {}), ("dot", (4, 2), (81, 82), {"root": True})]
    graph = layout_graph(nodes, [{83: (FREE,) * 3}])
    found = repeated_work(graph, range(len(nodes)))
    # evaluations after k pairs: 3 * 2^k - 2 as a tree, 2k + 1 as a graph, of 81
    assert found[7] == pytest.approx((3 * 2**3 - 2 - 7) / 81)
    assert np.isfinite(list(found.values())).all() and found[81] == pytest.approx(1e6, rel=1e-3)


def test_an_odd_slot_stores_the_tensor():
    features = layout_features(two_dots((FREE, ODD, FREE), (FREE, PLAIN, FREE)))
    again = (SLOW + 1) * 128 / ALL
    assert features["node_odd_repeated"].to_list() == pytest.approx([np.log1p(again), 0])
    share = 128 / (128 + 64 + 32)
    assert features["node_odd_bytes_repeated"].to_list() == pytest.approx([share, 0])


def test_fused_work_by_hand():
    graph = two_dots((FREE,) * 3, (PLAIN,) * 3)
    assert fused_work(graph, [0, 1, 2, 4, 5, 6, 7]) == {
        0: 0, 1: SLOW * 128, 2: (SLOW + 1) * 128, 4: (SLOW + 3) * 128, 5: 0, 6: 0, 7: SLOW * 32,
    }  # parameters and dots are stored; 7 reads one
    assert fused_work(graph, [1, 3, 5, 6, 7], after=True) == {
        1: 3 * 128, 3: 128, 5: 0, 6: SLOW * 32, 7: 0,
    }


def test_odd_slots_count_what_is_fused_with_them():
    features = layout_features(two_dots((FREE, ODD, FREE), (ODD, PLAIN, ODD)))
    total = 128 + 64 + 32
    before, after = (SLOW + 3) * 128 / total, SLOW * 32 / total
    assert features["node_odd_chain"].to_list() == pytest.approx([before, after])
    assert features["node_minor_chain"].to_list() == pytest.approx([before, after])
    assert features["node_odd_chain_input"].to_list() == pytest.approx([before, 0])
    assert features["node_odd_chain_output"].to_list() == pytest.approx([0, after])
    assert features["node_odd_chain_kernel"].to_list() == [0, 0]
