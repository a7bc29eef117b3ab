"""Why a cost-table model ranks one configuration behind another.

A score is a sum of rows that are looked up one by one (`utils.cost_rows`): a layout of one slot,
two facing layouts, a layout and who reads it. So the difference of two scores is, exactly, the sum
over the rows in which the two configurations differ, and each of them has a node and a layout.
Tiles are ranked by other trees: `utils.explain_trees` explains those.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from utils.cost_rows import KINDS, OUT, SLOT, CostRows, cost_rows, terms
from utils.cost_report import saved_models
from utils.cost_tables import CostTables, row_values
from utils.dataset import DataError, GraphFile
from utils.explain_trees import value_words
from utils.layout_edges import READERS, edge_rows, trace_edges
from utils.layout_rows import describe_slots
from utils.notebook import Run
from utils.schema import OPCODES, SLOTS
from utils.tensors import node_dimensions, node_rank

SCHEMA = {
    "adds": pl.Float64, "kind": pl.String, "node": pl.Int64, "operation": pl.String,
    "slot": pl.String, "shape": pl.String, "other": pl.Int64, "faces": pl.String,
    "in_b": pl.String, "in_a": pl.String,
}  # fmt: skip
UNSET_WORDS = "unset"


def explain(
    graph, model: CostTables, a: int, b: int, rows: CostRows | None = None, threads: int = 2
) -> pl.DataFrame:
    """What makes configuration `a` of a layout graph slower than `b`, the costliest first.

    One line for each term of the sum that differs; `adds` sums to score(a) - score(b), in the
    units of the score. The other columns:

    - kind: slot (the layout itself), pair and fixed (the layout against that of the tensor's
      maker, which chooses too or doesn't), out (the layout against a reader that doesn't choose);
    - node, operation, slot, shape: the node that the layout belongs to, and the tensor;
    - other, faces: the maker's node and operation, or the kind of reader (then `other` is null);
    - in_b, in_a: the layout that either configuration chooses, minor-most dimension first; of a
      pair "maker's > own".

    `rows`: from `cost_rows(graph)` if they are there already. Raises DataError for a tile graph
    and for a model with other features, IndexError for a configuration that is not there.
    """
    if graph.codes is None:
        name = "this" if graph.file is None else graph.file.path
        raise DataError(f"{name}: a tile graph has no layouts that cost tables could explain: call "
                        "explain_trees.explain_trees with a rank_pairwise model")
    if not (0 <= a < graph.configs and 0 <= b < graph.configs):
        raise IndexError(f"configurations {a} and {b}: there are {graph.configs}")
    rows = cost_rows(graph) if rows is None else rows
    value = row_values(model, rows, threads)
    slow, fast = terms(graph, rows, np.array([a, b])).astype(np.int64)
    differ = np.flatnonzero(value[slow] != value[fast])
    told = Words(graph, rows)
    lines = [
        {"adds": value[slow[t]] - value[fast[t]]}
        | told.about(slow[t], rows.columns[t])
        | {"in_b": told.layout(fast[t], rows.columns[t], b),
           "in_a": told.layout(slow[t], rows.columns[t], a)}
        for t in differ
    ]  # fmt: skip
    return pl.DataFrame(lines, SCHEMA).sort("adds", "node", "kind", descending=[True, False, False])


class Words:
    """Says in words what each row of `cost_rows(graph)` is about."""

    def __init__(self, graph, rows: CostRows) -> None:
        self.graph, self.rows = graph, rows
        self.slots = describe_slots(graph)
        self.edges = trace_edges(graph, self.slots)
        self.facing = edge_rows(self.edges, self.slots)
        self.first = len(self.slots.node)  # rows: those of slots, of edges, of readers
        self.readers = np.column_stack(
            [rows.features[:, rows.names.index(f"out_{name}")] for name in READERS]
        )
        self.dims = node_dimensions(graph).astype(int)
        self.rank = node_rank(graph)

    def about(self, row: int, column) -> dict:
        """Kind, node, operation, slot, shape, other and faces of a row."""
        kind, other, faces = self.rows.kind[row], None, None
        if kind == SLOT:
            j, slot = self.slots.node[row], self.slots.slot[row]
        elif kind == OUT:
            j, slot, faces = column.nodes[0], 0, READERS[int(np.nanargmax(self.readers[row]))]
        else:
            e = self.facing.edge[row - self.first]
            j, slot, other = self.edges.node[e], self.edges.slot[e], int(self.edges.source[e])
            faces = self.operation(other)
        node = int(self.graph.config_nodes[j])
        tensor = self.slots.tensor[self.slots.start[3 * j + slot]]
        shape = self.dims[tensor][: self.rank[tensor]] if tensor >= 0 else ()
        return {
            "kind": KINDS[kind], "node": node, "operation": self.operation(node),
            "slot": SLOTS[slot], "shape": "x".join(map(str, shape)), "other": other, "faces": faces,
        }  # fmt: skip

    def operation(self, node: int) -> str:
        """The opcode of a node, such as 'dot'."""
        return OPCODES[self.graph.opcode[node]]

    def layout(self, row: int, column, config: int) -> str:
        """The layout, or the two facing ones, that a row stands for."""
        if self.rows.kind[row] == SLOT:
            return layout_words(self.slots.layout[row])
        if self.rows.kind[row] == OUT:
            (j,) = column.nodes
            place = self.graph.row_start[j] + int(self.graph.codes[config, j])
            return layout_words(self.slots.layout[self.slots.of_row[place, 0]])
        place = row - self.first
        own = layout_words(self.slots.layout[self.facing.used[place]])
        made = self.facing.made[place]
        if made >= 0:
            return f"{layout_words(self.slots.layout[made])} > {own}"
        stated = self.edges.order[self.facing.edge[place]]
        return f"{layout_words(stated)} > {own}" if (stated >= 0).any() else own


def layout_words(layout: np.ndarray) -> str:
    """'{0,1}', minor-most dimension first, of six columns; 'unset': the compiler decides."""
    named = layout[layout >= 0]
    return "{" + ",".join(map(str, named)) + "}" if len(named) else UNSET_WORDS


def by_node(table: pl.DataFrame) -> pl.DataFrame:
    """The same sum by node, the costliest first: node, operation, adds."""
    grouped = table.group_by("node", "operation").agg(pl.col("adds").sum())
    return grouped.sort("adds", "node", descending=[True, False])


def sentence(table: pl.DataFrame, a: str = "a", b: str = "b") -> str:
    """The first thing to say about an explanation, of cost tables or of trees."""
    total = float(table["adds"].sum())
    by_column = "column" in table.columns
    told = table.filter(pl.col("column").is_not_null()) if by_column else table
    if not len(told):
        return f"the model sees no difference between {a} and {b}"
    first = told.row(0 if total >= 0 else len(told) - 1, named=True)
    if by_column:
        values = [value_words(first[key]) for key in ("in_a", "in_b")]
        where = f"{first['means']}, {values[0]} instead of {values[1]}"
    else:
        where = f"{first['slot']} of {first['operation']} {first['node']}"
        where += f" facing {first['faces']}" if first["faces"] else ""
    share = f"{first['adds'] / total:.0%} of the difference" if total else "no difference in all"
    word = "slower" if total >= 0 else "faster"
    return f"{a} is {word} than {b} by {abs(total):.3f}; the largest part is the {where} ({share})"


def label(line: dict) -> str:
    """One line of an explanation, of cost tables or of trees, in words."""
    if "column" in line:
        values = f": {value_words(line['in_b'])}  to  {value_words(line['in_a'])}"
        return line["means"] + (values if line["column"] else "")
    place = f"{line['operation']} {line['node']}, {line['slot']}"
    if line["faces"]:
        other = "" if line["other"] is None else f" {line['other']}"
        place += f" | {line['faces']}{other}"
    return f"{place}: {line['in_b']}  to  {line['in_a']}"


def choose_file(run: Run, name: str = "") -> GraphFile | None:
    """The graph to explain: of the first collection of a run with a saved model, None if none has.

    The one called `name`; else the largest file of the valid split, or
    of any graph where there is none. Raises DataError for a name that is not there.
    """
    there = list(saved_models(run))
    files = [f for f in run.files if f.collection in there]
    if not there:
        return None
    if name:
        files = [f for f in files if f.name == name]
        if not files:
            raise DataError(f"no layout graph {name!r} of a collection with a saved model")
        return files[0]
    files = [f for f in files if f.collection == there[0]]
    unseen = [f for f in files if f.split == "valid"]
    return max(unseen or files, key=lambda f: (f.path.stat().st_size, f.name), default=None)
