"""Layouts spread backwards from the slots that set them."""

import numpy as np

from hand_graphs import DOTS, FREE, ODD, PLAIN, layout_graph
from utils.layout_rows import describe_slots
from utils.layout_spread import Codes, reached_nodes, tensor_sources
from utils.program import Program


def spread(graph):
    """The orders of the nodes that layouts reach, in every configuration."""
    program = Program(graph, describe_slots(graph))
    tensors = tensor_sources(program)
    nodes = reached_nodes(program, tensors)
    codes = Codes(program, tensors, nodes, graph.codes)
    places = {v: np.broadcast_to(codes.node(v), graph.configs + 1).tolist() for v in nodes}
    assert all(place[-1] == 0 for place in places.values())  # of the one that sets nothing
    return {v: [nodes[v].orders[c] for c in place[:-1]] for v, place in places.items()}


SHAPE = (4, 16)
ROW, COLUMN = (1, 0), (0, 1)


def test_a_layout_spreads_to_what_its_tensor_is_computed_from():
    nodes = [
        *DOTS[:4],  # 3 is the tanh of the first dot
        ("parameter", (16,), (), {}),
        ("broadcast", SHAPE, (4,), {"dimensions_0": 1}),
        ("add", SHAPE, (3, 5), {}),
        ("parameter", (16, 2), (), {}),
        ("dot", (4, 2), (6, 7), {"root": True}),
        ("negate", SHAPE, (6,), {}),  # reads it, too: nothing spreads forwards
    ]
    graph = layout_graph(nodes, [
        {2: (FREE,) * 3, 8: (FREE, ODD, FREE)},
        {2: (ODD, FREE, FREE), 8: (FREE, FREE, FREE)},
        {2: (FREE,) * 3, 8: (FREE, PLAIN, FREE)},
    ])  # fmt: skip
    assert spread(graph) == {
        6: [COLUMN, ROW, ROW], 3: [COLUMN, ROW, ROW], 5: [COLUMN, ROW, ROW]}  # fmt: skip


def test_reshapes_take_and_do_not_ask_and_transposes_have_their_own():
    turn = {f"dimensions_{i}": d for i, d in enumerate((1, 0, 2))}
    nodes = [
        ("parameter", (6, 8, 16), (), {}),
        ("negate", (6, 8, 16), (0,), {}),
        ("transpose", (8, 6, 16), (1,), turn),
        ("transpose", (6, 8, 16), (2,), turn),
        ("reshape", (48, 16), (3,), {}),
        ("parameter", (16, 2), (), {}),
        ("dot", (48, 2), (4, 5), {"root": True}),
    ]
    graph = layout_graph(nodes, [{6: (FREE, order, FREE)} for order in (COLUMN, ROW, FREE)])
    assert spread(graph) == {
        4: [COLUMN, ROW, ROW],
        2: [(2, 0, 1)] * 3,  # the negate in row-major, its dimensions renamed
        3: [(2, 1, 0)] * 3,  # and back
    }


def test_row_major_does_not_spread_and_the_last_on_the_walk_wins():
    def graph(shape, *configs):
        nodes = [
            ("parameter", shape, (), {}),
            ("tanh", shape, (0,), {}),
            ("negate", shape, (1,), {}),
            ("sine", shape, (1,), {}),
            ("parameter", (16, 2), (), {}),
            ("dot", (*shape[:-1], 2), (2, 4), {}),
            ("dot", (*shape[:-1], 2), (3, 4), {}),  # the walk from the root is done with it last
            ("add", (*shape[:-1], 2), (5, 6), {"root": True}),
        ]
        return layout_graph(nodes, [{5: (FREE, a, FREE), 6: (FREE, b, FREE)} for a, b in configs])

    configs = (ODD, PLAIN), (PLAIN, ODD), (FREE, ODD), (PLAIN, PLAIN)
    assert spread(graph(SHAPE, *configs))[1] == [COLUMN, COLUMN, COLUMN, ROW]
    one, other = (0, 1, 2), (1, 2, 0)
    assert spread(graph((3, 4, 16), (one, other), (other, one), (one, FREE)))[1] == [
        other, one, one]  # fmt: skip


def test_of_several_consumers_the_first_on_the_walk_from_the_root_counts():
    def graph(operands, *configs):
        nodes = [
            ("parameter", SHAPE, (), {}),
            ("tanh", SHAPE, (0,), {}),
            ("parameter", (16, 2), (), {}),
            ("dot", (4, 2), (1, 2), {}),
            ("dot", (4, 2), (1, 2), {}),
            ("add", (4, 2), operands, {"root": True}),
        ]
        return layout_graph(nodes, [{3: (FREE, a, FREE), 4: (FREE, b, FREE)} for a, b in configs])

    configs = (ODD, PLAIN), (PLAIN, ODD), (FREE, ODD), (ODD, FREE)
    assert spread(graph((3, 4), *configs)) == {1: [COLUMN, ROW, COLUMN, COLUMN]}
    assert spread(graph((4, 3), *configs)) == {1: [ROW, COLUMN, COLUMN, COLUMN]}


def test_a_reshape_s_own_slot_comes_first():
    nodes = [("parameter", (4, 4, 4), (), {}), ("negate", (4, 4, 4), (0,), {}),
             ("reshape", (16, 4), (1,), {}), ("parameter", (4, 2), (), {}),
             ("dot", (16, 2), (2, 3), {"root": True})]  # fmt: skip
    graph = layout_graph(nodes, [
        {2: (COLUMN, FREE, FREE), 4: (FREE, ROW, FREE)},
        {2: (FREE, FREE, FREE), 4: (FREE, COLUMN, FREE)},
        {2: (FREE, (1, 0, 2), FREE), 4: (FREE, FREE, FREE)},  # what it reads, by its input slot
    ])  # fmt: skip
    assert spread(graph) == {
        2: [COLUMN, COLUMN, ROW], 1: [(2, 1, 0), (2, 1, 0), (1, 0, 2)]}  # fmt: skip


def test_products_want_batch_free_and_contracting_dimensions_in_one_way():
    def wanted(left, right, shape):
        nodes = [("parameter", left, (), {}), ("parameter", right, (), {}),
                 ("dot", shape, (0, 1), {"root": True})]  # fmt: skip
        graph = layout_graph(nodes, [{2: (FREE, FREE, FREE)}])
        return Program(graph, describe_slots(graph)).wanted

    assert wanted((5, 3, 4), (5, 4, 2), (5, 3, 2)) == {}
    assert wanted((5, 4, 3), (5, 2, 4), (5, 3, 2)) == {}  # transposed is as good
    assert wanted((3, 5, 4), (5, 4, 2), (5, 3, 2)) == {(2, 0): (2, 0, 1), (2, 1): (2, 1, 0)}
