"""What the loops of a program read (`utils.loops`): from a value back to what lies in memory."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from utils.layout_spread import Codes
from utils.orders import LINE_BYTES, Order
from utils.program import SLICES, Program
from utils.schema import OPCODE_ID

LOADS = ("unit", "near", "far", "far_large")
L1_LINES = 512  # cache lines of the first cache, 32 KiB
_NO_WORK = frozenset(OPCODE_ID[name] for name in (
    "broadcast", "concatenate", "iota", "pad", "reshape", "reverse", "slice", "transpose"
))  # fmt: skip
_WORK = np.arange(len(LOADS) + 1) == len(LOADS)


class Value(NamedTuple):
    """What a node computes. Arrays are [b + 1], or [1] where configurations make no difference.

    orders: those of its maker (the first `own`), its output slot, its consumers' slots. computed,
    given, asked: the places of the order it is computed in, of the one that readers without a slot
    find, and of the one that consumers' slots set. stored: does it lie in memory as computed?
    fused: do loops that read it compute it, whether it lies in memory or not?
    """

    orders: list[Order]
    own: int
    computed: np.ndarray
    given: np.ndarray
    asked: np.ndarray
    stored: np.ndarray
    fused: np.ndarray


class Reads:
    """What users read of the values found so far; `values` grows as a program is walked."""

    def __init__(self, program: Program, codes: Codes, values: dict[int, Value]) -> None:
        self.program, self.codes, self.values = program, codes, values
        self._found: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def slot_set(self, user: int, operand: int) -> np.ndarray:
        """Where a slot of the user sets a layout for this operand, bool."""
        program, j = self.program, self.program.place.get(user, -1)
        found = np.zeros(1, bool)
        for k in (1, 2):
            if program.tensor.get((j, k)) == operand and program.rows(j, k):
                found = found | (self.codes.asked(j, k) > 0)
        return found

    def found(self, user: int, operand: int) -> tuple[np.ndarray, np.ndarray]:
        """What a user reads: the place of its order, and where the user's loop computes it."""
        if (user, operand) not in self._found:
            value, slot = self.values[operand], self.slot_set(user, operand)
            place = np.where(slot, value.asked, value.given)
            fused = ~slot & value.fused & (value.given < value.own)
            self._found[user, operand] = place, fused
        return self._found[user, operand]

    def walk(self, start: int, inner: int, where: np.ndarray) -> np.ndarray:
        """What loops over `start` read and compute, float64 [b + 1 or 1, loads and work], bytes.

        From the value back to all that is computed in the same loop. What is read twice along the
        same dimension counts once, but for different slices of it.
        """
        program, work = self.program, np.zeros(1)
        if not where.any():
            return np.zeros((1, len(LOADS) + 1))
        computed = {(start, inner): program.elements[start] * where}
        waiting = [(-program.turn[start], start, inner)]
        reads: dict[tuple, list] = {}
        while waiting:
            _, node, inner = heapq.heappop(waiting)
            amount, code = computed[node, inner], program.graph.opcode[node]
            if code not in _NO_WORK:
                work = work + amount * program.width[node]
            for operand in dict.fromkeys(program.operands[node]):
                if program.scalar[operand]:
                    continue
                along = program.along(node, operand, inner) if inner >= 0 else None
                place, fused = self.found(node, operand)
                needed = amount
                if code == OPCODE_ID["concatenate"]:
                    needed = np.minimum(amount, program.elements[operand])
                inside, outside = needed * fused, needed * ~fused
                if outside.any():
                    slot = len(self.slot_set(node, operand)) > 1
                    key = (operand, slot, along, node if SLICES[code] else None)
                    seen = reads.setdefault(key, [0.0, place, node, inner])
                    seen[0] = np.maximum(seen[0], outside)
                if inside.any():
                    key = operand, along[0] if along else -1
                    if key not in computed:
                        heapq.heappush(waiting, (-program.turn[operand], *key))
                        computed[key] = inside
                    elif SLICES[code]:
                        whole = program.elements[operand]
                        computed[key] = np.minimum(computed[key] + inside, whole)
                    else:
                        computed[key] = np.maximum(computed[key], inside)
        cost = work[:, None] * _WORK
        for (operand, _, along, _), (amount, place, node, inner) in reads.items():
            cost = cost + self.load(operand, place, along, node, inner, amount)
        return cost

    def load(self, operand: int, place: np.ndarray, along, node: int, inner: int, amount):
        """What is read of a stored value, float64 [b + 1 or 1, loads and work], in bytes.

        place: of its order; along: (dimension, elements of it to a step), or None, of what the
        innermost loop of `node`, over its dimension `inner`, reads; amount: elements.
        """
        program = self.program
        lines = program.shape[node][inner] if inner >= 0 else 1
        width, shape = float(program.width[operand]), program.shape[operand]
        orders = self.values[operand].orders
        table = np.array([_kinds(order, shape, width, along, lines) for order in orders])
        return table[place] * (width * np.reshape(amount, (-1, 1)))


def _kinds(order: Order, shape: tuple, width: float, along, lines: int) -> tuple[bool, ...]:
    """Which of LOADS a read is, and False for work."""
    if along is None or shape[along[0]] == 1:
        return (False,) * (len(LOADS) + 1)  # the same element again and again
    stride = along[1]
    for d in order:
        if d == along[0]:
            break
        stride *= shape[d]
    far = stride * width >= LINE_BYTES
    return (stride == 1, stride > 1 and not far, far, far and lines > L1_LINES, False)
