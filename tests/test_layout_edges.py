"""Edges between facing layouts: a copy counts only where they differ."""

import numpy as np

from hand_graphs import FREE, ODD, PLAIN, dots, layout_graph, random_graph
from utils.coding import config_sum, decode
from utils.layout_edges import KINDS, READERS, edge_rows, edge_sums, readers, trace_edges
from utils.layout_rows import describe_slots


def copied_bytes(graph, what="copied"):
    slots = describe_slots(graph)
    edges = trace_edges(graph, slots)
    rows = edge_rows(edges, slots)
    table = (getattr(rows, what) * rows.bytes)[:, None]
    fixed, pairs = edge_sums(graph, edges, rows, slots, table)
    return (config_sum(graph, fixed) + pairs)[:, 0]


def test_edges_of_two_dots():
    graph = dots((PLAIN,) * 6)
    edges = trace_edges(graph, describe_slots(graph))
    assert edges.node.tolist() == [0, 0, 1, 1]
    assert edges.slot.tolist() == [1, 2, 1, 2]
    assert edges.source.tolist() == [0, 1, 2, 4]  # the tanh in between is passed through
    assert edges.maker.tolist() == [-1, -1, 0, -1]
    assert [KINDS[k] for k in edges.kind] == ["given", "given", "configurable", "given"]
    assert edges.hops.tolist() == [0, 0, 1, 0]


def test_a_copy_is_counted_only_where_layouts_differ():
    graph = dots(
        (PLAIN,) * 6,
        (FREE,) * 6,
        (ODD, PLAIN, PLAIN, PLAIN, PLAIN, PLAIN),  # 256: made odd, wanted plain
        (ODD, PLAIN, PLAIN, PLAIN, ODD, PLAIN),  # agreed
        (FREE, FREE, FREE, FREE, ODD, FREE),  # 256: made plain by the compiler
        (PLAIN, PLAIN, ODD, PLAIN, PLAIN, ODD),  # 512 + 128: parameters are row-major
        (ODD, FREE, FREE, FREE, FREE, FREE),  # the compiler may go on with the odd one
    )
    assert copied_bytes(graph).tolist() == [0, 0, 256, 0, 256, 640, 0]
    assert copied_bytes(graph, "minor_differs").tolist() == [0, 0, 256, 0, 256, 640, 0]
    assert copied_bytes(graph, "handed_on").tolist() == [0, 0, 0, 0, 0, 0, 256]


def test_a_parameter_with_a_stated_layout_of_its_own():
    odd = {"layout_minor_to_major_0": 0, "layout_minor_to_major_1": 1}
    nodes = [("parameter", (4, 8), (), odd), ("parameter", (8, 16), (), {}),
             ("dot", (4, 16), (0, 1), {"root": True})]
    graph = layout_graph(nodes, [{2: (FREE, ODD, FREE)}, {2: (FREE, PLAIN, FREE)}])
    assert copied_bytes(graph).tolist() == [0, 128]


def test_a_transpose_renames_dimensions():
    nodes = [
        ("parameter", (4, 8, 16), (), {}),
        ("transpose", (16, 4, 8), (0,), {f"dimensions_{i}": d for i, d in enumerate((2, 0, 1))}),
        ("transpose", (4, 16, 8), (1,), {f"dimensions_{i}": d for i, d in enumerate((1, 0, 2))}),
        ("parameter", (8, 5), (), {}),
        ("dot", (4, 16, 5), (2, 3), {"root": True}),
    ]
    # row-major [4, 8, 16] is {2, 1, 0}; the slot's dimensions 0, 1, 2 are its 0, 2, 1
    configs = [{4: (FREE, order, FREE)} for order in ((1, 2, 0), (2, 1, 0), FREE, (1, 0, 2))]
    graph = layout_graph(nodes, configs)
    edges = trace_edges(graph, describe_slots(graph))
    assert edges.source.tolist() == [0, 3] and edges.hops.tolist() == [2, 0]
    assert edges.names[0, :3].tolist() == [0, 2, 1]
    size = 4 * 8 * 16 * 4
    assert copied_bytes(graph).tolist() == [0, size, 0, size]
    assert copied_bytes(graph, "minor_differs").tolist() == [0, size, 0, 0]


def test_copies_equal_a_plain_loop_over_a_random_graph(tmp_path):
    graph = random_graph(tmp_path, 5)
    feat = decode(graph).reshape(graph.configs, -1, 3, 6)
    slots = describe_slots(graph)
    edges = trace_edges(graph, slots)
    expected = np.zeros(graph.configs)

    def order(i, j, k):
        return [int(d) for d in feat[i, j, k] if d >= 0]

    for i in range(graph.configs):
        for node, slot, source, maker in zip(edges.node, edges.slot, edges.source, edges.maker):
            wanted = order(i, node, slot)
            made = order(i, maker, 0) if maker >= 0 else []
            rank = len(wanted)
            if rank and wanted != (made or list(range(rank))[::-1]):
                dims = graph.node_feat[source, 21:27]
                expected[i] += 4 * np.prod(dims[dims > 0])
    assert (edges.maker >= 0).any() and (edges.maker < 0).any() and expected.std() > 0
    assert (copied_bytes(graph) == expected).all()


def test_readers():
    nodes = [
        ("parameter", (4, 8), (), {}),
        ("parameter", (8, 16), (), {}),
        ("dot", (4, 16), (0, 1), {}),
        ("tanh", (4, 16), (2,), {}),
        ("slice", (16, 4), (3,), {}),
        ("dot", (4, 4), (3, 4), {}),
        ("reduce", (4,), (5,), {}),
        ("exponential", (4, 4), (5,), {}),
        ("tuple", (), (6, 7), {"root": True}),
    ]
    graph = layout_graph(nodes, [{2: (FREE,) * 3, 5: (FREE,) * 3}])
    found = [[name for name, yes in zip(READERS, row) if yes] for row in readers(graph)]
    assert found == [["move"], ["root", "reduce"]]
