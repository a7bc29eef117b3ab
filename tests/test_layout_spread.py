"""Layouts spread backwards from the slots that set them, and copies follow."""

from dataclasses import replace

import numpy as np
import pytest

from hand_graphs import DOTS, FREE, ODD, PLAIN, coded, dots, layout_graph, random_graph
from utils import spread_copies
from utils.coding import decode
from utils.layout_rows import describe_slots
from utils.layout_spread import SLICES, Codes, Program, reached_nodes, tensor_sources
from utils.orders import bitcast_order, copy_kind, reshape_kind, row_major, without_units
from utils.schema import OPCODE_ID
from utils.spread_copies import COLUMNS, spread_columns


def spread(graph):
    program = Program(graph, describe_slots(graph))
    tensors = tensor_sources(program)
    nodes = reached_nodes(program, tensors)
    codes = Codes(program, tensors, nodes, graph.codes)
    return {v: [here.orders[c] for c in codes.node(v)] for v, here in nodes.items()}


def sums(graph, *names):
    found = spread_columns(graph, describe_slots(graph), 1.0)
    assert [*found] == [f"copy_spread_{name}" for name in COLUMNS]
    return [found[f"copy_spread_{name}"].tolist() for name in names]


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


def test_transposes_rename_and_reshapes_hand_on_what_they_can():
    turn = {f"dimensions_{i}": d for i, d in enumerate((1, 0, 2))}
    nodes = [
        ("parameter", (6, 8, 16), (), {}),
        ("negate", (6, 8, 16), (0,), {}),
        ("transpose", (8, 6, 16), (1,), turn),
        ("reshape", (8, 96), (2,), {}),
        ("parameter", (96, 2), (), {}),
        ("dot", (8, 2), (3, 4), {"root": True}),
    ]
    graph = layout_graph(nodes, [{5: (FREE, order, FREE)} for order in (COLUMN, ROW, FREE)])
    assert spread(graph) == {
        3: [COLUMN, ROW, ROW],
        2: [(0, 2, 1), (2, 1, 0), (2, 1, 0)],
        1: [(1, 2, 0), (2, 0, 1), (2, 1, 0)],
    }
    split = [("parameter", (6, 16), (), {}), ("negate", (6, 16), (0,), {}),
             ("reshape", (12, 8), (1,), {}), ("parameter", (8, 2), (), {}),
             ("dot", (12, 2), (2, 3), {"root": True})]  # fmt: skip
    assert spread(layout_graph(split, [{4: (FREE, COLUMN, FREE)}])) == {2: [COLUMN]}


def test_the_nearest_wins_and_a_reshape_s_own_slot_first():
    nodes = [
        ("parameter", SHAPE, (), {}),
        ("tanh", SHAPE, (0,), {}),
        ("negate", SHAPE, (1,), {}),
        ("negate", SHAPE, (2,), {}),
        ("parameter", (16, 2), (), {}),
        ("dot", (4, 2), (3, 4), {}),  # two steps from the tanh
        ("dot", (4, 2), (2, 4), {}),  # one step
        ("add", (4, 2), (5, 6), {"root": True}),
    ]
    free = (FREE,) * 3
    graph = layout_graph(nodes, [
        {5: (FREE, ODD, FREE), 6: free},
        {5: (FREE, ODD, FREE), 6: (FREE, PLAIN, FREE)},
        {5: (FREE, PLAIN, FREE), 6: (FREE, ODD, FREE)},
    ])  # fmt: skip
    assert spread(graph) == {
        3: [COLUMN, COLUMN, ROW], 2: [COLUMN, ROW, COLUMN], 1: [COLUMN, ROW, COLUMN]}  # fmt: skip
    nodes = [("parameter", (4, 4, 4), (), {}), ("negate", (4, 4, 4), (0,), {}),
             ("reshape", (16, 4), (1,), {}), ("parameter", (4, 2), (), {}),
             ("dot", (16, 2), (2, 3), {"root": True})]  # fmt: skip
    graph = layout_graph(nodes, [
        {2: (COLUMN, FREE, FREE), 4: (FREE, ROW, FREE)},
        {2: (FREE, FREE, FREE), 4: (FREE, COLUMN, FREE)},
        {2: (ROW, (1, 0, 2), FREE), 4: (FREE, FREE, FREE)},  # hands on what its input slot sets
    ])  # fmt: skip
    assert spread(graph) == {
        2: [COLUMN, COLUMN, COLUMN], 1: [(1, 0, 2), (1, 0, 2), (1, 0, 2)]}  # fmt: skip


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


def test_copies_by_hand():
    graph = dots(
        (PLAIN,) * 6,
        (FREE,) * 6,
        # the tanh of the first dot, 256 bytes, is computed by columns: a copy before, one behind
        (FREE, FREE, FREE, FREE, ODD, FREE),
        (ODD, FREE, FREE, FREE, FREE, FREE),  # copied at once, and back for the tanh
        (ODD, FREE, FREE, FREE, ODD, FREE),  # the tanh takes it as it is
        (FREE, ODD, FREE, FREE, FREE, FREE),  # the parameter, 128, there and back
        (ODD, ODD, ODD, ODD, ODD, ODD),
    )
    copied, count, near, far, odd, slow = sums(
        graph, "any", "count", "near", "far", "odd_work", "odd_slow"
    )
    every = 2 * (128 + 512 + 256 + 128 + 32)
    assert copied == [0, 0, 512, 512, 512, 256, every]
    assert count == [0, 0, 1, 1, 1, 1, 5]  # for each of two configurable nodes
    # rows of 8 floats, two of 64 bytes, a third of 8, columns of 4, 8, 4, 16, 4 floats
    assert near == [0, 0, 256, 256, 256, 256, every - 256 - 512 - 128]
    assert far == [0, 0, 256, 256, 256, 0, 256 + 512 + 128]
    assert odd == slow == [0, 0, 256, 0, 256, 0, 256]


def test_what_is_copied_anyway_does_not_count_and_a_slice_is_copied_alone():
    turn = {"dimensions_0": 1, "dimensions_1": 0}
    nodes = [
        ("parameter", (16, 4), (), {}),
        ("transpose", (4, 16), (0,), turn),  # always copied: 256 bytes
        ("slice", (4, 8), (1,), {}),
        ("parameter", (8, 2), (), {}),
        ("dot", (4, 2), (2, 3), {}),
        ("tuple", (), (4, 1), {"root": True}),
    ]
    graph = layout_graph(nodes, [{4: (FREE, order, FREE)} for order in (FREE, PLAIN, ODD)])
    # by columns neither the transpose nor the slice moves anything; the tuple gets a copy of the
    # one, 256, the dot of the other, 128
    assert sums(graph, "any", "count") == [[0, 0, 128], [0, 0, 1]]
    nodes[1:2] = [("tanh", (4, 16), (0,), {})]
    nodes[0] = ("dot", (4, 16), (), {})
    graph = layout_graph(nodes, [{4: (FREE, order, FREE)} for order in (FREE, PLAIN, ODD)])
    # the tanh: 256 by columns, for the tuple back to rows; the slice of it back: 128
    assert sums(graph, "any", "odd_work", "odd_slow") == [
        [0, 0, 256 + 256 + 128], [0, 0, 256 + 128], [0, 0, 256]]  # fmt: skip


def test_one_copy_serves_all_readers():
    nodes = [
        ("parameter", SHAPE, (), {}),
        ("parameter", (16, 2), (), {}),
        ("dot", SHAPE, (), {}),
        ("dot", (4, 2), (2, 1), {}),
        ("dot", (4, 2), (2, 1), {}),
        ("add", (4, 2), (3, 4), {"root": True}),
    ]
    free = (FREE,) * 3
    graph = layout_graph(nodes, [
        {2: (ODD, FREE, FREE), 3: free, 4: free},  # by columns and back once
        {2: free, 3: (FREE, ODD, FREE), 4: (FREE, ODD, FREE)},
        {2: free, 3: (FREE, ODD, FREE), 4: free},  # the other reads it as it is
        {2: (ODD, FREE, FREE), 3: (FREE, ODD, FREE), 4: free},
    ])  # fmt: skip
    assert sums(graph, "any", "count") == [[512] * 4, [2 / 3] * 4]


def test_blocks_and_the_order_of_configurations_change_nothing(tmp_path, monkeypatch):
    graph = random_graph(tmp_path, 5)
    slots = describe_slots(graph)
    whole = np.stack([*spread_columns(graph, slots, 7.0).values()])
    assert (whole.std(axis=1) > 0).sum() >= 6
    feat = decode(graph).astype(np.int8)
    turned = np.random.default_rng(0).permutation(len(feat))
    monkeypatch.setattr(spread_copies, "BLOCK", 1)
    for picked in (np.arange(len(feat)), turned):
        part = replace(graph, codes=np.asfortranarray(graph.codes[picked]))
        found = np.stack([*spread_columns(part, slots, 7.0).values()])
        assert found.tolist() == whole[:, picked].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_sums_equal_a_walk_through_each_configuration(tmp_path, seed):
    graph = random_graph(tmp_path, seed)
    slots = describe_slots(graph)
    expected = [one_by_one(graph, slots, codes) for codes in graph.codes]
    found = spread_columns(graph, slots, 1.0)["copy_spread_any"]
    start = one_by_one(graph, slots, None)
    assert found.tolist() == pytest.approx([e - start for e in expected])


def one_by_one(graph, slots, codes) -> float:
    """Bytes copied in one configuration, its layouts spread by a search of its own."""
    program = Program(graph, slots)
    visits = program.visits()
    given, asked = {}, {}
    for j, v in enumerate(graph.config_nodes.tolist()):
        for k in range(3):
            row = codes is not None and slots.of_row[graph.row_start[j] + codes[j], k]
            if codes is None or not slots.is_set[row]:
                continue
            order = tuple(int(d) for d in slots.order[row] if d >= 0)
            if k == 0:
                given[v] = order
            elif slots.tensor[row] >= 0:
                tensor = int(slots.tensor[row])
                asked.setdefault(tensor, []).append((visits[v, tensor], v, k, order))
    merged = {tensor: min(found)[3] for tensor, found in asked.items()}
    users = {tensor: {v for _, v, _, _ in found} for tensor, found in asked.items()}
    near = {}
    seeds = [(program.place[v], -0.5, v, order) for v, order in given.items()]
    for tensor, order in merged.items():
        asking = [j for (j, k), t in program.tensor.items() if k and t == tensor]
        seeds.append((min(j for j in asking if program.orders(j, 1) + program.orders(j, 2)), 0.0,
                      tensor, order))  # fmt: skip
        for v in users[tensor]:
            if graph.opcode[v] == OPCODE_ID["reshape"]:
                handed = bitcast_order(program.shape[tensor], program.shape[v], order)
                near.setdefault(v, []).append((-1.0, -1, handed))
    for rank, (_, begin, start, order) in enumerate(sorted(seeds)):
        found, waiting = {start: (begin, order)}, [start]
        while program.free(start) and waiting:
            node = waiting.pop(0)
            distance, order = found[node]
            near.setdefault(node, []).append((distance, rank, order))
            for operand in program.operands[node]:
                wanted = program.wanted(node, operand, order)
                if operand not in found and program.free(operand) and wanted:
                    found[operand] = distance + 1, wanted
                    waiting.append(operand)
    own = {v: row_major(shape) for v, shape in enumerate(program.shape)}
    for node, found in near.items():
        found = [f for f in found if f[2]]
        if found:
            own[node] = min(found)[2]
    seen = {}

    def copy(key, kinds, size):
        if kinds[0]:
            seen[key] = size

    for node in range(len(own)):
        for operand in program.operands[node]:
            shape, width = program.shape[operand], float(program.width[operand])
            if len(shape) < 2:
                continue

            def plain(a, b, part=operand):
                bare = [without_units(o, shape) for o in (a, b)]
                kinds = copy_kind(a, b, shape, width)
                copy((part, *bare, operand), kinds, program.bytes[part])

            have = given.get(operand, own[operand])
            if operand in given:
                plain(own[operand], have)
            if node in users.get(operand, ()):
                plain(have, merged[operand])
                have = merged[operand]
            code = graph.opcode[node]
            if code == OPCODE_ID["reshape"]:
                shapes = shape, program.shape[node]
                kinds = reshape_kind(have, own[node], *shapes, width)
                copy((node, have, own[node]), kinds, program.bytes[node])
            elif (wanted := program.wanted(node, operand, own[node])) is not None:
                plain(have, wanted, node if SLICES[code] else operand)
    for node in program.roots:
        back = row_major(program.shape[node])
        for a, b in ((own[node], given.get(node, own[node])), (given.get(node, own[node]), back)):
            bare = [without_units(o, program.shape[node]) for o in (a, b)]
            kinds = copy_kind(a, b, program.shape[node], float(program.width[node]))
            copy((node, *bare, node), kinds, program.bytes[node])
    return float(sum(seen.values()))


def test_a_program_without_layouts(tmp_path):
    graph = coded(DOTS, np.array([2]), np.full((2, 1, 18), -1, np.int8))
    assert [v for values in sums(graph, *COLUMNS) for v in values] == [0.0] * 2 * len(COLUMNS)
