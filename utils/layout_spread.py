"""Which layout every tensor gets when a configuration sets some of them.

What XLA's layout assignment makes of a configuration, as its programs show before and after that
pass on XLA:CPU. (They were read to find these rules; no model has seen one.)

- A layout that is set, unless it is row-major, spreads backwards to all that its tensor is computed
  from, through element-wise operations, slices and broadcasts. Where several arrive, that of the
  consumer wins which a depth-first walk from the program's root is done with last. Nothing spreads
  forwards.
- A reshape takes the layout asked of it and asks for none. A transpose has the layout that makes it
  a bitcast of its operand in row-major. Products and all other operations want and give row-major;
  products whose dimensions do not lie as [batch, free, contracting] want their operands so.
- Layouts that several consumers set for one tensor become one: that of the consumer which the walk
  is done with first.

Here, too, a layout is a code. Sources (what slots set) have codes; every node that they reach has a
list of its sources, the winner first, and a table from a source's codes to its own. `Codes` looks
them up for many configurations at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from utils.orders import Order, row_major, without_units
from utils.program import Program
from utils.schema import OPCODE_ID

FOREMOST = 40  # sources of a node that are looked at
CLOSE = 1000  # nodes that a source reaches at most


@dataclass
class Source:
    """What consumers set for one tensor: the first of `slots` (j, k) that is set counts.

    Its code is 1 + the place in `orders`, 0 where no slot is set.
    """

    slots: list[tuple[int, int]]
    orders: list[Order]


@dataclass
class Reached:
    """A node whose layout depends on the configuration.

    orders: those that it can have, first the one without a source; its code is the place. sources:
    the winner first, (what looks up the source's code, int64 [codes of the source], -1 where it
    doesn't arrive).
    """

    orders: list[Order]
    sources: list[tuple[Callable, np.ndarray]] = field(default_factory=list)


def tensor_sources(program: Program) -> dict[int, Source]:
    """Of every tensor for which consumers may set a layout (its maker's node), their source."""
    visits = program.visits()
    asked: dict[int, list] = {}
    for (j, k), tensor in program.tensor.items():
        if k and tensor >= 0 and program.rows(j, k):
            user = int(program.graph.config_nodes[j])
            asked.setdefault(tensor, []).append((visits.get((user, tensor), len(visits)), j, k))
    sources = {}
    for tensor, found in asked.items():
        slots = [(j, k) for _, j, k in sorted(found)]
        orders = (order for slot in slots for order in program.orders(*slot))
        sources[tensor] = Source(slots, list(dict.fromkeys(orders)))
    return sources


def reached_nodes(program: Program, tensors: dict[int, Source]) -> dict[int, Reached]:
    """The nodes to which layouts spread from the sources of `tensors` and from reshapes' outputs.
    """
    found: dict[int, list] = {}  # (rank of the source, look up, orders here)
    visits = program.visits()
    nodes = program.graph.config_nodes.tolist()
    seeds = []
    for tensor, source in tensors.items():
        user = nodes[source.slots[0][0]]
        rank = visits.get((user, tensor), len(visits))
        seeds.append((rank, tensor, _looks_up("source", tensor), source.orders))
    for j, node in enumerate(nodes):  # what a reshape's own slot sets comes before all
        if program.graph.opcode[node] == OPCODE_ID["reshape"]:
            seeds.append((len(visits) + 1, node, _looks_up("out", j), program.orders(j, 0)))
    for rank, start, look_up, orders in seeds:
        plain = _bare(program, start, row_major(program.shape[start]))
        odd = [None if _bare(program, start, order) == plain else order for order in orders]
        if not any(odd) or not program.takes(start):
            continue
        seen, waiting = {start}, deque([(start, odd)])
        while waiting and len(seen) < CLOSE:
            node, here = waiting.popleft()
            found.setdefault(node, []).append((rank, look_up, here))
            for operand in program.operands[node]:
                if operand in seen or not program.takes(operand):
                    continue
                there = [order and program.handed_on(node, operand, order) for order in here]
                if any(there):
                    seen.add(operand)
                    waiting.append((operand, there))
    reached = {node: _reached(program, node, sources) for node, sources in found.items()}
    return reached | {node: Reached([order]) for node, order in program.turned.items()}


def _bare(program: Program, node: int, order: Order) -> Order:
    return without_units(order, program.shape[node])


def _looks_up(name: str, *args) -> Callable:
    return lambda codes: getattr(codes, name)(*args)


def _reached(program: Program, node: int, found: list) -> Reached:
    reached = Reached([row_major(program.shape[node])])
    for _, look_up, orders in sorted(found, key=lambda source: -source[0])[:FOREMOST]:
        reached.orders += [o for o in dict.fromkeys(orders) if o and o not in reached.orders]
        codes = [-1, *(reached.orders.index(o) if o else -1 for o in orders)]
        reached.sources.append((look_up, np.array(codes)))
    return reached


class Codes:
    """Codes of `codes` [b, nc], a block of configurations, and of one more that sets nothing.

    All answers are int64 [b + 1], or [1] where the configuration makes no difference.
    """

    def __init__(self, program, tensors, nodes, codes: np.ndarray) -> None:
        self.program, self.tensors, self.nodes, self.codes = program, tensors, nodes, codes
        self._known: dict[tuple, np.ndarray] = {}

    def source(self, tensor: int) -> np.ndarray:
        """What consumers set for a tensor, see Source."""
        return self._once(self._source, tensor)

    def asked(self, j: int, k: int) -> np.ndarray:
        """The code of the tensor's source where this slot is set, else 0."""
        return self._once(self._asked, j, k)

    def out(self, j: int) -> np.ndarray:
        """1 + the place of what an output slot sets in `Program.orders`, 0 where it is not set."""
        return self._once(self._slot, j, 0)

    def node(self, node: int) -> np.ndarray:
        """The place of a node's layout in Reached.orders; 0 for nodes that nothing reaches."""
        return self._once(self._node, node)

    def _once(self, look_up: Callable, *args) -> np.ndarray:
        key = (look_up.__name__, *args)
        if key not in self._known:
            self._known[key] = look_up(*args).astype(np.uint16)  # there may be many
        return self._known[key].astype(np.int64)

    def _source(self, tensor: int) -> np.ndarray:
        answer = np.zeros(1, np.int64)
        for j, k in self.tensors[tensor].slots[::-1]:
            own = self._slot(j, k, self.tensors[tensor].orders)
            answer = np.where(own > 0, own, answer)
        return answer

    def _asked(self, j: int, k: int) -> np.ndarray:
        tensor = self.program.tensor[j, k]
        own = self._slot(j, k, self.tensors[tensor].orders)
        return np.where(own > 0, self.source(tensor), 0)

    def _slot(self, j: int, k: int, orders: list[Order] | None = None) -> np.ndarray:
        own = self.program.orders(j, k)
        places = [1 + (orders or own).index(order) for order in own]
        place = dict(zip(self.program.rows(j, k), places))
        graph = self.program.graph
        rows = self.program.slots.of_row[slice(*graph.row_start[j : j + 2]), k]
        table = np.array([place.get(row, 0) for row in rows.tolist()])
        return np.append(table[self.codes[:, j]], 0)

    def _node(self, node: int) -> np.ndarray:
        answer = np.zeros(1, np.int64)
        for look_up, codes in self.nodes[node].sources[::-1] if node in self.nodes else ():
            new = codes[look_up(self)]
            answer = np.where(new >= 0, new, answer)
        return answer
