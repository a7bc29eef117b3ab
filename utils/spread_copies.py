"""The copies that a configuration takes once its layouts have spread (`utils.layout_spread`).

Wherever an operation wants another order than its operand has, or a slot sets one, the operand is
copied; results are handed over in row-major. Which copy an edge takes is looked up by the codes at both its ends.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from utils.layout_rows import SlotRows
from utils.layout_spread import (
    SAME_RANK,
    SLICES,
    Codes,
    Program,
    Reached,
    Source,
    reached_nodes,
    tensor_sources,
)
from utils.orders import COPY_KINDS, Order, copy_kind, reshape_kind, row_major, without_units
from utils.recompute import TRANSCENDENTAL
from utils.schema import OPCODE_ID

BLOCK = 1 << 25  # codes held at a time
COLUMNS = (*COPY_KINDS, "count", "odd_work", "odd_slow")
Term = Callable[[Codes], np.ndarray]  # the row of a table, int64 [b], that an edge adds
Plan = tuple[list[Term], np.ndarray]  # terms of a tensor, float64 [copies, columns]; row 0: none


def spread_columns(graph, slots: SlotRows, total_bytes: float) -> dict[str, np.ndarray]:
    """Sums over the copies of every configuration, float64 [c], less those that the program takes
    when nothing is set.

    copy_spread_KIND, one for each of `orders.COPY_KINDS`: bytes copied over `total_bytes`;
    copy_spread_count: copies over configurable nodes; copy_spread_odd_work and _odd_slow: bytes,
    over `total_bytes`, that element-wise operations write in another order than row-major, all
    and those of slow functions. A copy that serves several readers counts once.
    """
    program = Program(graph, slots)
    tensors = tensor_sources(program)
    nodes = reached_nodes(program, tensors)
    plans = _plans(program, tensors, nodes)
    works = _odd_work(program, nodes)

    def total(codes: np.ndarray | None) -> np.ndarray:
        return _sum(plans, works, Codes(program, tensors, nodes, codes))

    sums = np.empty((graph.configs, len(COLUMNS)))
    step = max(1, BLOCK // max(1, len(nodes) + 3 * len(graph.config_nodes)))
    for begin in range(0, graph.configs, step):
        sums[begin : begin + step] = total(graph.codes[begin : begin + step])
    sums -= total(None)
    scale = np.full(len(COLUMNS), total_bytes)
    scale[COLUMNS.index("count")] = max(1, len(graph.config_nodes))
    return {f"copy_spread_{name}": sums[:, i] / scale[i] for i, name in enumerate(COLUMNS)}


def _sum(plans: list[Plan], works: list, codes: Codes) -> np.ndarray:
    """float64 [b, columns]."""
    total = np.zeros((codes.configs, len(COLUMNS)))
    for terms, table in plans:
        copies = np.stack([term(codes) for term in terms])
        if len(copies) > 1:  # one copy serves all readers that want its order
            copies.sort(axis=0)
            copies[1:][copies[1:] == copies[:-1]] = 0
        for rows in copies:
            if rows.any():
                total += table[rows]
    for node, table in works:
        total[:, -2:] += table[codes.node(node)]
    return total


def _plans(program: Program, tensors: dict[int, Source], nodes: dict[int, Reached]) -> list[Plan]:
    """Of every tensor whose copies depend on the configuration."""
    readers: dict[int, list[int]] = {root: [] for root in program.roots}
    for user, makers in enumerate(program.operands):
        for maker in dict.fromkeys(makers):
            readers.setdefault(maker, []).append(user)
    plans = []
    for tensor, users in readers.items():
        j = program.place.get(tensor)
        sets = tensor in tensors or (j is not None and program.rows(j, 0))
        if len(program.shape[tensor]) > 1 and (sets or any(v in nodes for v in (tensor, *users))):
            plans.append(_plan(program, tensors, nodes, tensor, users))
    return plans


def _plan(program: Program, tensors, nodes, tensor: int, users: list[int]) -> Plan:
    """Orders of the tensor in its tables: those of its maker, its output slot's, its consumers'."""
    copies = _Copies(program, tensor)
    j = program.place.get(tensor, -1)
    own = _orders(program, nodes, tensor)
    out = program.orders(j, 0) if j >= 0 else []
    asked = tensors[tensor].orders if tensor in tensors else []

    def given(codes: Codes) -> np.ndarray:
        answer = codes.node(tensor)
        if not out:
            return answer
        set_ = codes.out(j)
        return np.where(set_ > 0, len(own) + set_ - 1, answer)

    terms: list[Term] = []
    if out:
        table = _table([[0, *(copies.plain(a, b) for b in out)] for a in own])
        terms.append(lambda codes: table[codes.node(tensor), codes.out(j)])
    first = _table([[0, *(copies.plain(a, b) for b in asked)] for a in own + out])
    for user in users:
        orders = _orders(program, nodes, user)
        reads = _table([[copies.read(a, user, o) for o in orders] for a in own + out + asked])
        u = program.place.get(user, -1)
        slots = [k for k in (1, 2) if program.tensor.get((u, k)) == tensor and program.rows(u, k)]
        for k in slots:
            terms += _slot_terms(first, reads, given, len(own + out), (u, k), user)
        if not slots:
            terms.append(_reader_term(reads, given, user))
    if tensor in program.roots:  # a result is handed over in row-major
        plain = row_major(copies.shape)
        back = _table([[copies.plain(a, plain)] for a in own + out])
        terms.append(lambda codes: back[given(codes), 0])
    return terms, copies.table()


def _slot_terms(first, reads, given, many: int, slot: tuple[int, int], user: int) -> list[Term]:
    """From what is given to what a slot sets, and on to what its operation wants."""
    def have(codes: Codes) -> np.ndarray:
        asked = codes.asked(*slot)
        return np.where(asked > 0, many + asked - 1, given(codes))

    return [
        lambda codes: first[given(codes), codes.asked(*slot)],
        lambda codes: reads[have(codes), codes.node(user)],
    ]


def _reader_term(reads, given, user: int) -> Term:
    return lambda codes: reads[given(codes), codes.node(user)]


def _table(rows: list[list[int]]) -> np.ndarray:
    return np.array(rows, np.int64)


def _orders(program: Program, nodes: dict[int, Reached], node: int) -> list[Order]:
    return nodes[node].orders if node in nodes else [row_major(program.shape[node])]


class _Copies:
    """The different copies of one tensor, numbered from 1 as they are asked for; 0: no copy."""

    def __init__(self, program: Program, tensor: int) -> None:
        self.program, self.tensor = program, tensor
        self.shape, self.width = program.shape[tensor], float(program.width[tensor])
        self.number: dict[tuple, int] = {}
        self.rows = [(0.0,) * len(COLUMNS)]

    def table(self) -> np.ndarray:
        return np.array(self.rows)

    def plain(self, source: Order, target: Order, part: int | None = None) -> int:
        """A copy of the tensor, or of the `part` of it that one reader slices."""
        key = (part, without_units(source, self.shape), without_units(target, self.shape))
        kinds = copy_kind(source, target, self.shape, self.width)
        return self._numbered(key, kinds, self.tensor if part is None else part)

    def read(self, source: Order, user: int, order: Order) -> int:
        """The copy that a user takes whose output has `order`."""
        code = self.program.graph.opcode[user]
        if code == OPCODE_ID["reshape"]:
            kinds = reshape_kind(source, order, self.shape, self.program.shape[user], self.width)
            return self._numbered((user, source, order), kinds, user)
        wanted = self.program.wanted(user, self.tensor, order)
        if wanted is None:
            return 0
        return self.plain(source, wanted, user if SLICES[code] else None)

    def _numbered(self, key: tuple, kinds: tuple[bool, ...], written: int) -> int:
        if not kinds[0]:
            return 0
        if key not in self.number:
            self.number[key] = len(self.rows)
            size = float(self.program.bytes[written])
            self.rows.append((*(size * kind for kind in kinds), 1.0, 0.0, 0.0))
        return self.number[key]


def _odd_work(program: Program, nodes: dict[int, Reached]) -> list[tuple[int, np.ndarray]]:
    """(node, float64 [codes, 2]) of the element-wise operations and moves that layouts reach:
    bytes written if not in row-major, and these where a slow function is computed."""
    found = []
    for node, reached in nodes.items():
        code, shape = program.graph.opcode[node], program.shape[node]
        if SAME_RANK[code] or code == OPCODE_ID["broadcast"]:
            plain = without_units(row_major(shape), shape)
            odd = np.array([without_units(o, shape) != plain for o in reached.orders])
            size = odd * program.bytes[node]
            found.append((node, np.stack([size, size * TRANSCENDENTAL[code]], axis=1)))
    return found
