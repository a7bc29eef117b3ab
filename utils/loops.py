"""The loops that a program runs under a configuration: what they write, and how they read.

XLA:CPU turns everything but products, convolutions and reductions into loops. What its optimized
programs show (they were read to find these rules; no model has seen one):

- Element-wise operations and moves of data are computed inside the loop of their reader. A value is
  stored, by a loop of its own, when a slot sets a layout for it (nothing is fused across that),
  when an operation that is no loop reads it in the order it has, or when it has several readers.
  What is cheap is computed in each of its loops, stored or not. A reshape or transpose of a stored
  value is the same memory.
- A value that is wanted in another order is copied: inside the loop of its reader, or by a loop of
  its own where a slot sets the order or an operation that is no loop wants it.
- A loop runs over its result in the order of its layout. What it reads it reads along the dimension
  that the innermost of these is in what is read: neighbours, or one element of every cache line.

So every loop is a walk from a value back to what is stored, and what it costs are sums of looked-up
numbers, for many configurations at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from utils.layout_rows import SlotRows
from utils.layout_spread import Codes, reached_nodes, tensor_sources
from utils.loop_reads import LOADS, Reads, Value
from utils.orders import Order, bitcast_order, row_major, without_units
from utils.program import Program
from utils.schema import OPCODE_ID

BLOCK = 1 << 22  # codes held at a time
COLUMNS = ("written", "count", *LOADS, "work", "copied", "copies", "bytes")
_WRITTEN, _COUNT, _READS, _COPIED, _COPIES, _BYTES = 0, 1, slice(2, 7), 7, 8, 9


def loop_columns(graph, slots: SlotRows, total_bytes: float) -> dict[str, np.ndarray]:
    """Sums over the loops of every configuration, float64 [c], less those of the program when
    nothing is set.

    Bytes, over `total_bytes`: loop_written by loops; loop_unit, _near and _far read by them as
    neighbours, as several or as one element of a cache line, _far_large of these where the
    innermost loop reads more lines than the first cache holds; loop_bytes: written and far
    together; loop_work computed by element-wise operations; loop_copied written by loops that
    only copy.
    Numbers, over configurable nodes: loop_count of loops, loop_copies of those that only copy.
    """
    program = Program(graph, slots)
    tensors = tensor_sources(program)
    nodes = reached_nodes(program, tensors)
    sums = np.empty((graph.configs, len(COLUMNS)))
    settled: dict[int, Value] = {}
    begin, step = 0, 16  # the first few find out which nodes no layout reaches
    while begin < graph.configs:
        codes = Codes(program, tensors, nodes, graph.codes[begin : begin + step])
        total = _Block(program, codes, settled).run()
        sums[begin : begin + step] = total[:-1] - total[-1]
        begin += step
        step = max(1, BLOCK // max(1, len(program.shape) - len(settled)))
    sums[:, _BYTES] = sums[:, _WRITTEN] + sums[:, COLUMNS.index("far")]
    scale = np.full(len(COLUMNS), total_bytes)
    scale[[_COUNT, _COPIES]] = max(1, len(graph.config_nodes))
    return {f"loop_{name}": sums[:, i] / scale[i] for i, name in enumerate(COLUMNS)}


class _Copy(NamedTuple):
    """A loop that only copies: where, from which of the value's orders to which of `targets`."""

    where: np.ndarray
    source: np.ndarray
    targets: list[Order]
    target: np.ndarray


class _Block:
    """A block of configurations, and one more that sets nothing (`layout_spread.Codes`)."""

    def __init__(self, program: Program, codes: Codes, settled: dict[int, Value]) -> None:
        self.program, self.codes, self.settled = program, codes, settled
        self.total = np.zeros((len(codes.codes) + 1, len(COLUMNS)))
        self.values = dict(settled)
        self.reads = Reads(program, codes, self.values)
        self.varies = False

    def run(self) -> np.ndarray:
        """float64 [b + 1, columns], in bytes and numbers; what never changes is left out.

        Nodes that no configuration changes anything for are put into `settled`, and passed over.
        """
        for node in self.program.walk:
            if self.program.scalar[node] or node in self.settled:
                continue
            self.varies = False
            self._visit(node)
            value = self.values[node]
            if not self.varies and max(map(len, value[2:])) == 1:
                self.settled[node] = value
        return self.total

    def _visit(self, node: int) -> None:
        """Decide whether the value is stored and which copies it takes, and add the loops."""
        program, codes = self.program, self.codes
        shape, plain = program.shape[node], row_major(program.shape[node])
        j = program.place.get(node, -1)
        reached = codes.nodes.get(node)
        own = reached.orders if reached else [plain]
        out = program.orders(j, 0) if j >= 0 else []
        asks = codes.tensors[node].orders if node in codes.tensors else []
        orders = [*own, *out, *asks]
        computed = codes.node(node)
        set_ = codes.out(j) if out else np.zeros(1, np.int64)
        source = codes.source(node) if asks else np.zeros(1, np.int64)
        given = np.where(set_ > 0, len(own) + set_ - 1, computed)
        asked = len(own) + len(out) + source - 1
        copies: list[_Copy] = []
        alike = np.zeros(1, bool)  # consumers' slots set the order that there is
        barred = np.zeros(1, bool)  # something reads the value as it is computed, and no loop does
        readers = np.zeros(1, np.int64)  # loops that compute it
        at_hand = set_ == 0  # readers find what is computed, not what the output slot makes of it
        if out:
            moved = (set_ > 0) & _differs(shape, own, out)[computed, set_ - 1]
            copies.append(_Copy(moved, computed, out, set_ - 1))
            barred, readers = (set_ > 0) & ~moved, readers + moved
        if asks:
            moved = (source > 0) & _differs(shape, orders, asks)[given, source - 1]
            alike = (source > 0) & ~moved
            copies.append(_Copy(moved, given, asks, source - 1))
            barred = barred | (at_hand & alike)
            readers = readers + (at_hand & moved)
        again = program.fuses(node) and program.cheap(node)
        wants: dict[tuple[Order, bool], np.ndarray] = {}
        for user in program.users[node]:
            slot = self.reads.slot_set(user, node)
            if program.fuses(user):
                readers = readers + (at_hand & ~slot)
                continue
            folds = program.folds(user, node)
            wanted = program.wanted.get((user, node), plain)
            for behind, here in ((True, slot), (False, ~slot & (not folds))):
                moved = here & _differs(shape, orders, [wanted])[asked if behind else given, 0]
                wants[wanted, behind] = wants.get((wanted, behind), False) | moved
                if not behind:
                    barred = barred | (at_hand & here & ~moved)
        if node in program.roots and (program.fuses(node) or not out):
            moved = _differs(shape, orders, [plain])[given, 0]
            wants[plain, False] = wants.get((plain, False), False) | moved
            barred = barred | (at_hand & ~moved)
        for (wanted, behind), where in wants.items():
            start = asked if behind else given
            if not behind:
                readers = readers + (at_hand & where)
                if not again:  # behind the slot there is the same copy
                    where = where & ~(alike & wants.get((wanted, True), False))
            copies.append(_Copy(where, start, [wanted], np.zeros(1, np.int64)))
        stored = np.ones(1, bool)
        if program.graph.opcode[node] == OPCODE_ID["iota"]:
            stored = np.zeros(1, bool)  # made again wherever it is read
        elif program.fuses(node):
            stored = barred | ((readers > 1) & (not again))
        fused = ~stored | again
        value = Value(orders, len(own), computed, given, asked, stored, fused)
        self.values[node] = value
        if program.fuses(node):
            self._store(node, value)
        for copy in copies:
            self._copy(node, value, copy)

    def _store(self, node: int, value: Value) -> None:
        """The loops that compute the node, one for each order that it can have."""
        where = value.stored & ~self._same_memory(node, value)
        for code, order in enumerate(value.orders[: value.own]):
            here = where & (value.computed == code)
            reads = self.reads.walk(node, self._innermost(node, order), here)
            self._add(node, here, reads, copy=False)

    def _copy(self, node: int, value: Value, copy: _Copy) -> None:
        fused = value.fused & (copy.source < value.own)
        for code, order in enumerate(copy.targets):
            here, inner = copy.where & (copy.target == code), self._innermost(node, order)
            read = here & ~fused
            reads = self.reads.walk(node, inner, here & fused)
            if read.any():
                amount = self.program.elements[node] * read
                along = (inner, 1) if inner >= 0 else None
                reads = reads + self.reads.load(node, copy.source, along, node, inner, amount)
            self._add(node, here, reads, copy=True)

    def _innermost(self, node: int, order: Order) -> int:
        """The dimension along which the innermost loop over a value in this order runs, or -1."""
        return next(iter(without_units(order, self.program.shape[node])), -1)

    def _add(self, node: int, here: np.ndarray, reads: np.ndarray, copy: bool) -> None:
        """Add a loop: here, bool; reads: float64 [b + 1 or 1, loads and work]."""
        if len(here) == len(reads) == 1:
            return
        self.varies = True
        size = float(self.program.bytes[node])
        ones = here.astype(np.float64)
        self.total[:, _WRITTEN] += size * ones
        self.total[:, _COUNT] += ones
        self.total[:, _READS] += reads
        if copy:
            self.total[:, _COPIED] += size * ones
            self.total[:, _COPIES] += ones

    def _same_memory(self, node: int, value: Value) -> np.ndarray:
        """Where the node is a reshape or transpose of a stored value that moves nothing, bool."""
        program = self.program
        code, shape = program.graph.opcode[node], program.shape[node]
        turns = code == OPCODE_ID["transpose"]
        operand = next(iter(program.operands[node]), None)
        moves = turns or code == OPCODE_ID["reshape"]
        if not moves or operand is None or program.scalar[operand]:
            return np.zeros(1, bool)
        found, fused = self.reads.found(node, operand)
        own = [without_units(order, shape) for order in value.orders[: value.own]]
        same = np.zeros((len(self.values[operand].orders), len(own)), bool)
        for i, order in enumerate(self.values[operand].orders):
            if turns:
                place = program.dimensions(node)
                there = tuple(place.index(d) for d in order)
            else:
                there = bitcast_order(program.shape[operand], shape, order)
            same[i] = [there is not None and without_units(there, shape) == o for o in own]
        return ~fused & same[found, value.computed]


def _differs(shape: tuple, sources: list[Order], targets: list[Order]) -> np.ndarray:
    """bool [sources, targets]: does it take a copy to turn one order into the other?"""
    bare = [[without_units(o, shape) for o in orders] for orders in (sources, targets)]
    return np.array([[a != b for b in bare[1]] for a in bare[0]])
