"""The loops of a program: what they write, how they read, and where they come from."""

from dataclasses import replace

import numpy as np
import pytest

from hand_graphs import DOTS, FREE, ODD, PLAIN, coded, dots, layout_graph, random_graph
from utils import loops
from utils.coding import decode
from utils.layout_rows import describe_slots
from utils.layout_spread import Codes, reached_nodes, tensor_sources
from utils.loops import COLUMNS, loop_columns
from utils.orders import bitcast_order, row_major, without_units
from utils.program import Program
from utils.schema import OPCODE_ID, OPCODES

SHAPE = (4, 16)


def sums(graph, *names):
    found = loop_columns(graph, describe_slots(graph), 1.0)
    assert [*found] == [f"loop_{name}" for name in COLUMNS]
    return [found[f"loop_{name}"].tolist() for name in names]


def test_loops_by_hand():
    graph = dots(
        (PLAIN,) * 6,
        (FREE,) * 6,
        # the tanh of the first dot, 256 bytes, by columns: reads a line for each element; copied
        # back to rows for the second dot
        (FREE, FREE, FREE, FREE, ODD, FREE),
        (ODD, FREE, FREE, FREE, FREE, FREE),  # a copy reads lines, the tanh its columns of 4
        (ODD, FREE, FREE, FREE, ODD, FREE),  # the tanh reads the copy as it lies
        (FREE, ODD, FREE, FREE, FREE, FREE),  # the parameter of 4 x 8, 128 bytes, there and back
        (FREE, FREE, ODD, FREE, FREE, FREE),  # the parameter of 8 x 16, 512: there a line each
    )
    written, count, unit, near, far, copied, copies, work, both = sums(
        graph, "written", "count", "unit", "near", "far", "copied", "copies", "work", "bytes"
    )
    assert written == copied == [0, 0, 256, 256, 512, 256, 1024]
    assert count == copies == [0, 0, 0.5, 0.5, 1, 1, 1]  # for each of two configurable nodes
    assert unit == [0, 0, -256, -256, 0, 0, 0]
    assert near == [0, 0, 256, 256, 256, 256, 512]
    assert far == [0, 0, 256, 256, 256, 0, 512]
    assert work == [0] * 7
    assert both == [w + f for w, f in zip(written, far)]


def test_a_slot_keeps_apart_what_would_be_one_loop():
    nodes = [
        ("dot", (4, 16), (), {}),
        ("negate", (4, 16), (0,), {}),
        ("reshape", (8, 8), (1,), {}),
        ("abs", (8, 8), (2,), {}),
        ("parameter", (8, 2), (), {}),
        ("dot", (8, 2), (3, 4), {"root": True}),
    ]
    free = (FREE,) * 3
    graph = layout_graph(nodes, [
        {2: free, 5: free},
        {2: (FREE, PLAIN, FREE), 5: free},
        {2: (PLAIN, FREE, FREE), 5: free},
        {2: (PLAIN, PLAIN, FREE), 5: free},  # what lies between two slots is the same memory
        {2: free, 5: (FREE, PLAIN, FREE)},
    ])  # fmt: skip
    written, count, unit = sums(graph, "written", "count", "unit")
    assert written == unit == [0, 256, 256, 256, 0]
    assert count == [0, 0.5, 0.5, 0.5, 0]


@pytest.mark.parametrize("opcode, stored", [("negate", False), ("tanh", True), ("add", True)])
def test_what_is_cheap_is_computed_in_each_of_its_readers(opcode, stored):
    makers = (0, 1) if opcode == "add" else (0,)
    nodes = [
        ("dot", SHAPE, (), {}),
        ("dot", SHAPE, (), {}),
        (opcode, SHAPE, makers, {}),
        ("abs", SHAPE, (2,), {}),
        ("sign", SHAPE, (2,), {}),
        ("parameter", (16, 2), (), {}),
        ("dot", (4, 2), (3, 5), {}),
        ("dot", (4, 2), (4, 5), {}),
        ("add", (4, 2), (6, 7), {"root": True}),
    ]
    free = (FREE,) * 3
    graph = layout_graph(nodes, [
        {0: free, 6: (FREE, ODD, FREE), 7: free},  # one reader by columns, and so the rest
        {0: (ODD, FREE, FREE), 6: free, 7: free},
    ])  # fmt: skip
    far, near, written = sums(graph, "far", "near", "written")
    copied_back = 256  # near: the copy for the dot reads columns of 4
    if stored:  # by columns; the other reader reads it back
        assert (far[0], near[0]) == (256 * len(makers), 256 + copied_back)
    else:
        assert (far[0], near[0]) == (256, copied_back)
    assert written[0] == 256
    # the dot is copied to columns, which are read once or by both readers
    assert (far[1], near[1], written[1]) == (256, 256 if stored else 512, 256)


def test_a_loop_reads_what_two_of_its_values_want_once_and_slices_apart():
    nodes = [
        ("dot", (4, 16), (), {}),
        ("slice", (4, 8), (0,), {}),
        ("slice", (4, 8), (0,), {}),
        ("multiply", (4, 8), (1, 2), {}),
        ("add", (4, 8), (3, 1), {}),
        ("parameter", (8, 2), (), {}),
        ("dot", (4, 2), (4, 5), {"root": True}),
    ]
    free = (FREE,) * 3
    graph = layout_graph(nodes, [{0: (ODD, FREE, FREE), 6: free}, {0: free, 6: (FREE, ODD, FREE)}])
    unit, near, far = sums(graph, "unit", "near", "far")
    # two slices of 128 bytes, the first of them wanted twice; by columns, and copied back
    assert unit == [-256, -256] and near == [256, 128] and far == [256, 256]


def test_what_is_copied_anyway_does_not_count_and_a_slice_is_read_alone():
    turn = {"dimensions_0": 1, "dimensions_1": 0}
    nodes = [
        ("parameter", (16, 4), (), {}),
        ("transpose", (4, 16), (0,), turn),  # the same memory, copied for the tuple
        ("slice", (4, 8), (1,), {}),
        ("parameter", (8, 2), (), {}),
        ("dot", (4, 2), (2, 3), {}),
        ("tuple", (), (4, 1), {"root": True}),
    ]
    graph = layout_graph(nodes, [{4: (FREE, order, FREE)} for order in (FREE, PLAIN, ODD)])
    written, count, near, unit = sums(graph, "written", "count", "near", "unit")
    # by columns the slice of 128 bytes reads neighbours, and its copy for the dot columns of 4
    assert (written, count) == ([0, 0, 128], [0, 0, 1])
    assert (near, unit) == ([0, 0, 0], [0, 0, 128])


def test_blocks_and_the_order_of_configurations_change_nothing(tmp_path, monkeypatch):
    graph = random_graph(tmp_path, 5)
    slots = describe_slots(graph)
    whole = np.stack([*loop_columns(graph, slots, 7.0).values()])
    assert (whole.std(axis=1) > 0).sum() >= 6
    feat = decode(graph).astype(np.int8)
    turned = np.random.default_rng(0).permutation(len(feat))
    monkeypatch.setattr(loops, "BLOCK", 1)
    for picked in (np.arange(len(feat)), turned):
        part = replace(graph, codes=np.asfortranarray(graph.codes[picked]))
        found = np.stack([*loop_columns(part, slots, 7.0).values()])
        assert found.tolist() == whole[:, picked].tolist()


def test_a_program_without_layouts():
    graph = coded(DOTS, np.array([2]), np.full((2, 1, 18), -1, np.int8))
    assert [v for values in sums(graph, *COLUMNS) for v in values] == [0.0] * 2 * len(COLUMNS)


@pytest.mark.parametrize("seed", range(4))
def test_sums_equal_those_of_a_program_that_is_written_out(tmp_path, seed):
    graph = random_graph(tmp_path, seed)
    program = Program(graph, describe_slots(graph))
    tensors = tensor_sources(program)
    nodes = reached_nodes(program, tensors)
    codes = Codes(program, tensors, nodes, graph.codes)
    found = sums(graph, "written", "count", "unit", "near", "far")
    written_out = [WrittenOut(program, codes, i).sums() for i in range(graph.configs + 1)]
    expected = np.array(written_out[:-1]) - written_out[-1]
    expected[:, 1] /= len(graph.config_nodes)
    assert np.std(expected[:, [0, 1, 2, 4]], axis=0).min() > 0  # no dimension is small enough
    np.testing.assert_allclose(np.array(found).T, expected, atol=1e-9)


class WrittenOut:
    """One configuration as a list of instructions, copies and barriers among them.

    An instruction is [node, kind, order, operands]; kind: op, copy or barrier. The layouts are
    those of `Codes`, which tests/test_layout_spread.py is about.
    """

    def __init__(self, program, codes, i):
        self.program, self.list, self.seen = program, [], {}

        def at(values):
            return int(values[i if len(values) > 1 else 0])

        users = {}
        for node in program.walk:
            if program.scalar[node]:
                continue
            orders = codes.nodes[node].orders if node in codes.nodes else None
            order = orders[at(codes.node(node))] if orders else row_major(program.shape[node])
            read = []
            for operand in dict.fromkeys(program.operands[node]):
                if program.scalar[operand]:
                    continue
                have = users[operand]
                j = program.place.get(node, -1)
                for k in (1, 2):
                    if program.tensor.get((j, k)) == operand and program.rows(j, k):
                        code = at(codes.asked(j, k))
                        if code:
                            have = self.barrier(have, codes.tensors[operand].orders[code - 1])
                if not program.fuses(node) and not (
                    program.folds(node, operand) and self.list[have][1] != "barrier"
                ):
                    want = program.wanted.get((node, operand), row_major(program.shape[operand]))
                    have = self.copied(have, want)
                read.append(have)
            users[node] = self.put(node, "op", order, read)
            j = program.place.get(node, -1)
            if j >= 0 and program.orders(j, 0) and at(codes.out(j)):
                wanted = program.orders(j, 0)[at(codes.out(j)) - 1]
                users[node] = self.barrier(users[node], wanted)
        self.results = []
        for root in program.roots:
            have = users[root]
            if program.fuses(root) or self.list[have][1] == "op":
                have = self.copied(have, row_major(program.shape[root]))
            self.results.append(have)

    def put(self, *instruction):
        key = (*instruction[:3], tuple(instruction[3]))
        if key not in self.seen:
            self.seen[key] = len(self.list)
            self.list.append([*instruction])
        return self.seen[key]

    def copied(self, have, order):
        node, _, now, _ = self.list[have]
        shape = self.program.shape[node]
        same = without_units(now, shape) == without_units(order, shape)
        return have if same else self.put(node, "copy", order, [have])

    def barrier(self, have, order):
        have = self.copied(have, order)
        return self.put(self.list[have][0], "barrier", order, [have])

    def sums(self):
        program, readers = self.program, {}
        for i, (node, kind, _, operands) in enumerate(self.list):
            for operand in operands:
                readers.setdefault(operand, set()).add(i)
        stored = {}
        for i, (node, kind, _, _) in enumerate(self.list):
            fused = [self.loop(r) for r in readers.get(i, ())]
            again = kind == "op" and self.cheap(node)
            kept = i in self.results or not all(fused) or (len(fused) > 1 and not again)
            if kind == "copy":  # for a reader that is no loop; else part of the reader's loop
                kept = i in self.results or not all(fused)
            stored[i] = kept or kind == "barrier" or not self.loop(i)
            if kind == "op" and program.graph.opcode[node] == OPCODE_ID["iota"]:
                stored[i] = False
        total = np.zeros(5)
        for i, (node, kind, order, operands) in enumerate(self.list):
            if not stored[i] or kind == "barrier" or not self.loop(i):
                continue
            if self.same_memory(i, stored):
                continue
            size = program.bytes[node]
            total += [size, 1, 0, 0, 0]
            moving = next(iter(without_units(order, program.shape[node])), None)
            amounts, loads = {(i, moving): program.elements[node]}, {}
            for k in range(i, -1, -1):
                for (at, along), amount in [*amounts.items()]:
                    if at == k:
                        self.read(k, along, amount, amounts, loads, stored)
            for (memory, place, *_), amount in loads.items():
                total += amount * self.kind(memory, place)
        return total

    def cheap(self, node):
        return self.program.fuses(node) and self.program.cheap(node)

    def loop(self, i):
        node, kind, _, _ = self.list[i]
        return kind == "copy" or (kind == "op" and self.program.fuses(node))

    def read(self, i, along, amount, amounts, loads, stored):
        node, kind, _, operands = self.list[i]
        sliced = kind == "op" and OPCODES[self.program.graph.opcode[node]] == "slice"
        for operand in operands:
            at = self.list[operand][0]
            place = None
            if along is not None:
                place = (along, 1) if kind == "copy" else self.program.along(node, at, along)
            while self.list[operand][1] == "barrier":  # the memory below
                operand = self.list[operand][3][0]
                if not stored[operand]:
                    stored[operand] = True
            again = self.list[operand][1] == "op" and self.cheap(at) and operand in self.list[i][3]
            if stored[operand] and not again:
                key = (operand, place, i if sliced else None)
                loads[key] = max(loads.get(key, 0), amount)
            else:
                key = (operand, place[0] if place else None)
                amounts[key] = max(amounts.get(key, 0), amount)

    def kind(self, i, place):
        node, _, order, _ = self.list[i]
        shape, width = self.program.shape[node], self.program.width[node]
        if place is None or shape[place[0]] == 1:
            return np.zeros(5)
        stride = place[1] * int(np.prod([shape[d] for d in order[: order.index(place[0])]]))
        kind = 2 if stride == 1 else 3 if stride * width < 64 else 4
        return width * np.eye(5)[kind]

    def same_memory(self, i, stored):
        node, kind, order, operands = self.list[i]
        name = OPCODES[self.program.graph.opcode[node]]
        if kind != "op" or name not in ("reshape", "transpose") or not operands:
            return False
        below = operands[0]
        if not stored[below]:
            return False
        source, shape = self.list[below][0], self.program.shape[node]
        have = self.list[below][2]
        if name == "transpose":
            place = self.program.dimensions(node)
            there = tuple(place.index(d) for d in have)
        else:
            there = bitcast_order(self.program.shape[source], shape, have)
        return there is not None and without_units(there, shape) == without_units(order, shape)
