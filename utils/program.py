"""A layout graph as a program: operands, users, shapes, what operations do with layouts."""

from __future__ import annotations

from math import prod

import numpy as np

from utils.layout_edges import ELEMENTWISE
from utils.layout_rows import SlotRows
from utils.orders import Order, common_factors, row_major
from utils.recompute import TRANSCENDENTAL
from utils.roles import BATCH, CONTRACTING, FREE, slot_tensors
from utils.schema import NODE_COLUMN, OPCODE_ID
from utils.tensors import (
    element_bytes,
    listed,
    node_bytes,
    node_dimensions,
    node_rank,
    opcode_mask,
    operand_edges,
)

SLICES = opcode_mask("dynamic-slice slice")
SAME_RANK = ELEMENTWISE | SLICES | opcode_mask("concatenate dynamic-update-slice pad reverse")
_TAKES = SAME_RANK | opcode_mask("broadcast reshape")
_FUSES = _TAKES | opcode_mask("iota transpose")


class Program:
    """A layout graph as lists of operands and shapes, and what its slots can set."""

    def __init__(self, graph, slots: SlotRows) -> None:
        self.graph, self.slots = graph, slots
        dims, rank = node_dimensions(graph).astype(int), node_rank(graph)
        self.shape = [tuple(d[:r].tolist()) for d, r in zip(dims, rank)]
        self.bytes, self.width = node_bytes(graph), np.maximum(element_bytes(graph), 1.0)
        self.operands: list[list[int]] = [[] for _ in self.shape]
        for user, maker in operand_edges(graph).tolist():
            self.operands[user].append(maker)
        self.place = {v: j for j, v in enumerate(graph.config_nodes.tolist())}
        heads = slots.start[:-1]
        names = zip(slots.node[heads].tolist(), slots.slot[heads].tolist())
        self.tensor = dict(zip(names, slots.tensor[heads].tolist()))
        self.roots = np.flatnonzero(graph.node_feat[:, NODE_COLUMN["is_root"]] > 0).tolist()
        self._dimensions = graph.node_feat[:, listed("dimensions")].astype(int)
        self.users: list[list[int]] = [[] for _ in self.shape]
        for user, makers in enumerate(self.operands):
            for maker in dict.fromkeys(makers):
                self.users[maker].append(user)
        self.elements = [float(prod(shape)) for shape in self.shape]
        self.walk = self._makers_first()
        self.turn = {node: i for i, node in enumerate(self.walk)}
        self.scalar = self._scalars()
        self.turned = self._turned()
        self.wanted = _wanted(self)

    def rows(self, j: int, k: int) -> list[int]:
        """The slot rows of slot k of configurable node j that set a layout."""
        rows = range(*self.slots.start[3 * j + k : 3 * j + k + 2])
        return [row for row in rows if self.slots.is_set[row]]

    def orders(self, j: int, k: int) -> list[Order]:
        """The orders that a slot can set."""
        return [tuple(int(d) for d in self.slots.order[r] if d >= 0) for r in self.rows(j, k)]

    def _makers_first(self) -> list[int]:
        """All nodes, operands before their users."""
        order, seen = [], [False] * len(self.shape)
        for start in range(len(self.shape)):
            stack = [(start, 0)]
            while stack:
                node, i = stack.pop()
                if i == 0:
                    if seen[node]:
                        continue
                    seen[node] = True
                if i == len(self.operands[node]):
                    order.append(node)
                    continue
                stack += [(node, i + 1), (self.operands[node][i], 0)]
        return order

    def _scalars(self) -> list[bool]:
        """Is a node a single constant, or one that is broadcast? It is never read from memory."""
        scalar = [False] * len(self.shape)
        for node in self.walk:
            code, makers = self.graph.opcode[node], self.operands[node]
            if code == OPCODE_ID["constant"]:
                scalar[node] = prod(self.shape[node]) == 1
            elif code == OPCODE_ID["broadcast"]:
                scalar[node] = bool(makers) and (
                    scalar[makers[0]] or prod(self.shape[makers[0]]) == 1)
            elif ELEMENTWISE[code]:
                scalar[node] = bool(makers) and all(scalar[maker] for maker in makers)
        return scalar

    def _turned(self) -> dict[int, Order]:
        """The order of every transpose."""
        turned: dict[int, Order] = {}
        for node in self.walk:
            if self.graph.opcode[node] == OPCODE_ID["transpose"] and self.operands[node]:
                (maker, *_), place = self.operands[node], self.dimensions(node)
                plain = turned.get(maker, row_major(self.shape[maker]))
                if sorted(place) == sorted(plain):
                    turned[node] = tuple(place.index(d) for d in plain)
        return turned

    def takes(self, node: int) -> bool:
        """Does the node's output take the layout that is asked of it?"""
        return bool(_TAKES[self.graph.opcode[node]]) and not self.scalar[node]

    def cheap(self, node: int) -> bool:
        """May it be computed again in each of several readers?

        So it is without slow functions and with at most one operand as large as itself, or where
        all readers take slices of it. A quotient by a broadcast value is multiplied by one over it.
        """
        code, broadcast = self.graph.opcode, OPCODE_ID["broadcast"]
        if TRANSCENDENTAL[code[node]]:
            divides = code[node] == OPCODE_ID["divide"]
            if not divides or not any(
                code[maker] == broadcast and not self.scalar[maker] for maker in self.operands[node]
            ):
                return False
        sliced = all(SLICES[code[user]] for user in self.users[node])
        large = {m for m in self.operands[node] if not self.scalar[m] and code[m] != broadcast}
        return len(large) <= 1 or (sliced and code[node] != OPCODE_ID["concatenate"])

    def folds(self, user: int, node: int) -> bool:
        """Does a product read the operand of this transpose instead of it?"""
        opcode, many = self.graph.opcode, len(self.shape[node])
        if opcode[user] != OPCODE_ID["dot"] or opcode[node] != OPCODE_ID["transpose"]:
            return False
        swapped = [*range(many - 2), many - 1, many - 2]
        return (user, node) not in self.wanted and self.dimensions(node) == swapped

    def along(self, node: int, operand: int, dimension: int) -> tuple[int, int] | None:
        """Where one step along a dimension of the node moves in its operand.

        (dimension of the operand, elements of it); None: it stays where it is.
        """
        code, shape = self.graph.opcode[node], self.shape[operand]
        if code == OPCODE_ID["transpose"]:
            return self.dimensions(node)[dimension], 1
        if code == OPCODE_ID["broadcast"]:
            known = self.dimensions(node)
            return (known.index(dimension), 1) if dimension in known else None
        if code == OPCODE_ID["reshape"]:
            factors = common_factors(shape, self.shape[node])
            if factors is None:
                last = dimension == len(self.shape[node]) - 1
                return (len(shape) - 1 if last else 0, 1) if shape else None
            mine = [i for i, (size, _, d) in enumerate(factors) if d == dimension and size > 1]
            if not mine:
                return None
            there = factors[mine[-1]][1]
            more_minor = factors[mine[-1] + 1 :]
            return there, prod(size for size, d, _ in more_minor if d == there)
        return (dimension, 1) if len(shape) == len(self.shape[node]) else None

    def fuses(self, node: int) -> bool:
        """May it be computed inside the loops of its readers?"""
        turns = self.graph.opcode[node] == OPCODE_ID["transpose"]
        return node in self.turned if turns else bool(_FUSES[self.graph.opcode[node]])

    def dimensions(self, node: int) -> list[int]:
        """Of a transpose: the operand's dimension of each of its own; of a broadcast: its own of
        each of the operand's."""
        many = len(self.shape[node])
        if self.graph.opcode[node] == OPCODE_ID["broadcast"]:
            many = len(self.shape[self.operands[node][0]])
        return self._dimensions[node, :many].tolist()

    def handed_on(self, node: int, operand: int, order: Order) -> Order | None:
        """The order that spreads to an operand from a node whose output takes `order`."""
        if self.graph.opcode[node] == OPCODE_ID["broadcast"]:
            known = self.dimensions(node)
            return tuple(known.index(d) for d in order if d in known)
        same = SAME_RANK[self.graph.opcode[node]] and len(self.shape[operand]) == len(order)
        return order if same else None

    def visits(self) -> dict[tuple[int, int], int]:
        """When a depth-first walk from the roots is done with an operand: (user, maker) -> rank."""
        order: dict[tuple[int, int], int] = {}
        done: set[int] = set()
        for root in self.roots:
            stack = [(root, 0)]
            done.add(root)
            while stack:
                node, i = stack.pop()
                if i == len(self.operands[node]):
                    continue
                maker = self.operands[node][i]
                if maker in done:
                    order.setdefault((node, maker), len(order))
                    stack.append((node, i + 1))
                else:
                    done.add(maker)
                    stack += [(node, i), (maker, 0)]
        return order


def _wanted(program: Program) -> dict[tuple[int, int], Order]:
    """The order of an operand that a product wants, (product, operand) -> order, if any wants
    another than row-major: [batch, free, contracting] x [batch, contracting, free]."""
    tensors, roles = slot_tensors(program.graph)
    wanted: dict[tuple[int, int], Order] = {}
    for j, node in enumerate(program.graph.config_nodes.tolist()):
        if program.graph.opcode[node] != OPCODE_ID["dot"] or (tensors[j, 1:] < 0).any():
            continue
        sides = []
        for k in (1, 2):
            here = roles[j, k, : len(program.shape[tensors[j, k]])].tolist()
            sides.append([[d for d, role in enumerate(here) if role == r]
                          for r in (BATCH, FREE, CONTRACTING)])  # fmt: skip
        if all(b == [*range(len(b))] and len(f) < 2 and len(c) < 2 for b, f, c in sides):
            continue
        for k, (batch, free, inner) in zip((1, 2), sides):
            major = batch + (free + inner if k == 1 else inner + free)
            wanted[node, int(tensors[j, k])] = tuple(major[::-1])
    return wanted
