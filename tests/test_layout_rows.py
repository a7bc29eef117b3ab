"""What a layout means: completed orders, roles, padding, and the byte count."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hand_graphs import CONVOLUTION, FREE, ODD, PLAIN, dots, layout_graph, random_graph
from utils.coding import decode
from utils.layout_rows import byte_count, complete_order, describe_slots, stated_orders
from utils.roles import ROLES, dot_roles, slot_tensors


def role_names(roles, rank):
    return [ROLES[r] for r in roles[:rank]]


def pad(*dims):
    return [*dims, *[-1] * (6 - len(dims))]


@given(st.integers(0, 6).flatmap(lambda rank: st.tuples(
    st.just(rank), st.permutations(range(rank)), st.integers(0, rank))))
def test_completed_order_is_a_permutation_that_begins_with_the_list(case):
    rank, order, listed = case
    [done] = complete_order(np.array([pad(*order[:listed])], np.int8), np.array([rank]))
    assert sorted(done[:rank]) == list(range(rank)) and (done[rank:] == -1).all()
    assert list(done[:listed]) == order[:listed]
    rest = done[listed:rank]
    assert (np.diff(rest) < 0).all()  # the rest is in descending order


def test_dot_roles():
    batch, free, _, contracting, _ = range(5)
    assert dot_roles((4, 16), (4, 8), (8, 16)) == (
        (free, free), (free, contracting), (contracting, free))
    assert dot_roles((4, 16), (4, 8), (9, 16)) is None
    # attention: [batch, heads, queries, keys] from [batch, queries, heads, size] twice
    assert dot_roles((32, 16, 100, 128), (32, 100, 16, 64), (32, 128, 16, 64)) == (
        (batch, batch, free, free),
        (batch, free, batch, contracting),
        (batch, free, batch, contracting),
    )
    assert dot_roles((8, 8), (8, 8), (8, 8))[1:] == ((free, contracting), (contracting, free))
    assert dot_roles((512, 256), (100, 512), (100, 256))[1:] == (
        (contracting, free), (contracting, free))


def test_operands_of_a_dot_are_told_apart_by_shape():
    graph = layout_graph(
        [("parameter", (16, 2), (), {}), ("parameter", (4, 16), (), {}),
         ("dot", (4, 2), (0, 1), {"root": True})],
        [{2: (PLAIN, PLAIN, PLAIN)}],
    )
    tensor, _ = slot_tensors(graph)
    assert tensor.tolist() == [[2, 1, 0]]


def test_convolution_kernel_comes_first_in_the_edge_list():
    graph = layout_graph(CONVOLUTION, [{2: ((3, 0), (0, 3), (2, 3))}])
    tensor, roles = slot_tensors(graph)
    assert tensor.tolist() == [[2, 1, 0]]
    assert role_names(roles[0, 0], 4) == ["batch", "spatial", "spatial", "free"]
    assert role_names(roles[0, 1], 4) == ["batch", "spatial", "spatial", "contracting"]
    assert role_names(roles[0, 2], 4) == ["spatial", "spatial", "contracting", "free"]
    slots = describe_slots(graph)
    assert slots.order[:, :4].tolist() == [[3, 0, 2, 1], [0, 3, 2, 1], [2, 3, 1, 0]]
    assert slots.sizes.tolist() == [[16, 2, 8], [2, 3, 8], [3, 16, 3]]
    assert [[ROLES[r] for r in row] for row in slots.roles] == [
        ["free", "batch", "spatial"], ["batch", "contracting", "spatial"],
        ["contracting", "free", "spatial"]]
    assert slots.bytes.tolist() == [2 * 8 * 8 * 16 * 4, 2 * 8 * 8 * 3 * 4, 3 * 3 * 3 * 16 * 4]
    assert slots.tile_padding.tolist() == [128 / 16 * 8 / 2, 128 / 2 * 8 / 3, 128 / 3 * 16 / 16]
    assert slots.vector_padding.tolist() == [1.0, 8 / 2, 8 / 3]
    assert slots.inversions.tolist() == [2 / 6, 3 / 6, 1 / 6]


def test_slot_rows_of_two_dots():
    graph = dots((PLAIN,) * 6, (ODD, PLAIN, PLAIN) + (FREE,) * 3)
    slots = describe_slots(graph)
    assert slots.node.tolist() == [0] * 4 + [1] * 6
    assert slots.slot.tolist() == [0, 0, 1, 2, 0, 0, 1, 1, 2, 2]
    assert slots.start.tolist() == [0, 2, 3, 4, 6, 8, 10]
    assert slots.is_set.tolist() == [True] * 4 + [False, True] * 3
    assert slots.is_default.tolist() == [False] + [True] * 9
    assert slots.tensor.tolist() == [2, 2, 0, 1, 5, 5, 3, 3, 4, 4]
    # the rows put together again are the configurations
    rows = graph.row_start[:-1] + graph.codes
    assert (slots.layout[slots.of_row[rows]].reshape(2, 2, 18) == decode(graph)).all()


def test_dimensions_of_size_one_move_no_data():
    nodes = [("parameter", (1, 8), (), {}), ("parameter", (8, 4), (), {}),
             ("dot", (1, 4), (0, 1), {"root": True})]
    graph = layout_graph(nodes, [{2: (ODD, ODD, ODD)}])
    slots = describe_slots(graph)
    assert slots.is_default.tolist() == [True, True, False]
    assert slots.order[0, :2].tolist() == [0, 1]  # as listed: padding sees it
    assert byte_count(graph).tolist() == [8 * 4 * 4]


def test_byte_count_by_hand():
    graph = dots(
        (PLAIN,) * 6,
        (FREE,) * 6,
        (ODD, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN),
        (ODD, FREE, FREE, FREE, ODD, FREE),
        (PLAIN, ODD, ODD, ODD, PLAIN, ODD),
    )
    assert byte_count(graph).tolist() == [0, 0, 256, 512, 128 + 512 + 32 + 128]


def test_byte_count_equals_a_plain_loop_over_a_random_graph(tmp_path):
    graph = random_graph(tmp_path, 3)
    feat = decode(graph).reshape(graph.configs, -1, 3, 6)
    tensor, _ = slot_tensors(graph)
    expected = np.zeros(graph.configs)
    for i in range(graph.configs):
        for j in range(len(graph.config_nodes)):
            for k in range(3):
                layout = [int(d) for d in feat[i, j, k] if d >= 0]
                if layout and layout != sorted(layout, reverse=True):
                    dims = graph.node_feat[tensor[j, k], 21:27]
                    expected[i] += 4 * np.prod(dims[dims > 0])
    assert (byte_count(graph) == expected).all() and expected.std() > 0


def test_stated_orders():
    nodes = [("parameter", (4, 8, 2), (), {"layout_minor_to_major_0": 0,
              "layout_minor_to_major_1": 2, "layout_minor_to_major_2": 1}),
             ("parameter", (4, 1, 8), (), {}),
             ("parameter", (4, 8), (), {"layout_minor_to_major_0": 0})]
    graph = layout_graph(nodes, [{0: (FREE, FREE, FREE)}])
    assert stated_orders(graph).tolist() == [pad(0, 2, 1), pad(2, 0), pad(1, 0)]
