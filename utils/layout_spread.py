"""Which layout every tensor gets when a configuration sets some of them.

What XLA's layout assignment makes of a configuration, as far as optimized programs of XLA:CPU show
it. (They were read to find these rules; no model has seen one.)

- A layout that is set spreads backwards, to all that is computed for its tensor: through
  element-wise operations, slices, transposes, broadcasts, and reshapes that it can make a bitcast.
  Where several arrive, the nearest wins. Nothing spreads forwards.
- Products and all other operations want and give row-major.
- Layouts that several consumers set for one tensor become one: that of the consumer which a
  depth-first walk from the program's root is done with first.

Here, too, a layout is a code. Sources (what slots set) have codes; every node that they reach has a
list of its sources, nearest first, and a table from a source's codes to its own. `Codes` looks them
up for many configurations at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from utils.layout_edges import ELEMENTWISE
from utils.layout_rows import SlotRows
from utils.orders import Order, bitcast_order, row_major
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

NEAREST = 16  # sources of a node that are looked at
CLOSE = 300  # nodes that a source reaches at most
SLICES = opcode_mask("dynamic-slice slice")
SAME_RANK = ELEMENTWISE | SLICES | opcode_mask(
    "concatenate dynamic-update-slice pad reduce-window reverse"
)  # fmt: skip
_FREE = SAME_RANK | opcode_mask("broadcast reshape transpose")


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

    def rows(self, j: int, k: int) -> list[int]:
        """The slot rows of slot k of configurable node j that set a layout."""
        rows = range(*self.slots.start[3 * j + k : 3 * j + k + 2])
        return [row for row in rows if self.slots.is_set[row]]

    def orders(self, j: int, k: int) -> list[Order]:
        """The orders that a slot can set."""
        return [tuple(int(d) for d in self.slots.order[r] if d >= 0) for r in self.rows(j, k)]

    def free(self, node: int) -> bool:
        """Does the node's output take the layout that is asked of it?"""
        return bool(_FREE[self.graph.opcode[node]])

    def wanted(self, node: int, operand: int, order: Order) -> Order | None:
        """The order of an operand that suits a node whose output has `order`; None: any."""
        code, shape = self.graph.opcode[node], self.shape[operand]
        if code == OPCODE_ID["transpose"]:
            return tuple(int(self._dimensions[node, d]) for d in order)
        if code == OPCODE_ID["broadcast"]:
            known = self._dimensions[node, : len(shape)].tolist()
            return tuple(known.index(d) for d in order if d in known)
        if code == OPCODE_ID["reshape"]:
            return bitcast_order(self.shape[node], shape, order)
        if SAME_RANK[code] and len(shape) == len(order):
            return order
        return row_major(shape) if ELEMENTWISE[code] or not SAME_RANK[code] else None

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

    orders: those that it can have, row-major first; its code is the place. sources: nearest first,
    (what looks up the source's code, int64 [codes of the source], -1 where it doesn't arrive).
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
    near: dict[int, list] = {}  # (distance, rank of the source, look up, orders here)
    nodes = program.graph.config_nodes.tolist()
    reshapes = [j for j, v in enumerate(nodes) if program.graph.opcode[v] == OPCODE_ID["reshape"]]
    # A reshape's own slot wins over what its readers ask: half a step nearer.
    seeds = [(min(s.slots)[0], 0.0, tensor, _looks_up("source", tensor), s.orders)
             for tensor, s in tensors.items()]  # fmt: skip
    seeds += [(j, -0.5, nodes[j], _looks_up("out", j), program.orders(j, 0)) for j in reshapes]
    for rank, (_, begin, start, look_up, orders) in enumerate(sorted(seeds, key=lambda s: s[:3])):
        if not orders or not program.free(start):
            continue
        distance, waiting = {start: begin}, deque([(start, orders)])
        while waiting and len(distance) < CLOSE:
            node, here = waiting.popleft()
            near.setdefault(node, []).append((distance[node], rank, look_up, here))
            for operand in program.operands[node]:
                if operand in distance or not program.free(operand):
                    continue
                there = [order and program.wanted(node, operand, order) for order in here]
                if any(there):
                    distance[operand] = distance[node] + 1
                    waiting.append((operand, there))
    for j in reshapes:  # what its input slot sets a reshape hands on, if it can do so by a bitcast
        tensor = program.tensor[j, 1]
        if tensor in tensors and program.rows(j, 1):
            shapes = program.shape[tensor], program.shape[nodes[j]]
            orders = [bitcast_order(*shapes, order) for order in tensors[tensor].orders]
            near.setdefault(nodes[j], []).append((-1.0, 0, _looks_up("asked", j, 1), orders))
    return {node: _reached(program, node, found) for node, found in near.items()}


def _looks_up(name: str, *args) -> Callable:
    return lambda codes: getattr(codes, name)(*args)


def _reached(program: Program, node: int, near: list) -> Reached:
    reached = Reached([row_major(program.shape[node])])
    for _, _, look_up, orders in sorted(near, key=lambda found: found[:2])[:NEAREST]:
        reached.orders += [o for o in dict.fromkeys(orders) if o and o not in reached.orders]
        codes = [-1, *(reached.orders.index(o) if o else -1 for o in orders)]
        reached.sources.append((look_up, np.array(codes)))
    return reached


class Codes:
    """Codes of `codes` [b, nc], a block of configurations; None: of the one that sets nothing.

    All answers are int64 [b].
    """

    def __init__(self, program, tensors, nodes, codes: np.ndarray | None) -> None:
        self.program, self.tensors, self.nodes, self.codes = program, tensors, nodes, codes
        self.configs = 1 if codes is None else len(codes)
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
            self._known[key] = look_up(*args).astype(np.uint8)  # there may be many
        return self._known[key].astype(np.int64)

    def _source(self, tensor: int) -> np.ndarray:
        answer = np.zeros(self.configs, np.int64)
        for j, k in self.tensors[tensor].slots[::-1]:
            own = self._slot(j, k, self.tensors[tensor].orders)
            answer = np.where(own > 0, own, answer)
        return answer

    def _asked(self, j: int, k: int) -> np.ndarray:
        tensor = self.program.tensor[j, k]
        own = self._slot(j, k, self.tensors[tensor].orders)
        return np.where(own > 0, self.source(tensor), 0)

    def _slot(self, j: int, k: int, orders: list[Order] | None = None) -> np.ndarray:
        if self.codes is None:
            return np.zeros(1, np.int64)
        own = self.program.orders(j, k)
        places = [1 + (orders or own).index(order) for order in own]
        place = dict(zip(self.program.rows(j, k), places))
        graph = self.program.graph
        rows = self.program.slots.of_row[slice(*graph.row_start[j : j + 2]), k]
        return np.array([place.get(row, 0) for row in rows.tolist()])[self.codes[:, j]]

    def _node(self, node: int) -> np.ndarray:
        answer = np.zeros(self.configs, np.int64)
        for look_up, codes in self.nodes[node].sources[::-1] if node in self.nodes else ():
            new = codes[look_up(self)]
            answer = np.where(new >= 0, new, answer)
        return answer
