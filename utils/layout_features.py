"""One row of features for each distinct configuration of a layout graph.

Nearly every feature is a sum of looked-up quantities (`utils.layout_tables`) over the rows that a
configuration contains, so no configuration is ever written out as 18 numbers a node. The prefix
of a column names its group: node_, copy_, loop_, cfg_, trans_, stat_, mp_. Columns are the same for
all layout graphs of a run.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from utils.coding import config_sum
from utils.layout_edges import edge_rows, edge_sums, readers, trace_edges
from utils.layout_rows import SlotRows, byte_count, describe_slots
from utils.layout_tables import (
    Columns,
    Scale,
    config_columns,
    copy_columns,
    largest_columns,
    node_columns,
    reader_columns,
)
from utils.loops import COLUMNS, loop_columns
from utils.node_costs import node_flops

# Shown a second time in units of the graph itself: (x - mean) / spread over its choices.
RELATIVE = (
    "node_byte_count",
    "node_odd_count",
    "node_odd_work",
    "node_odd_chain",
    "node_inversions",
    "node_odd_bytes_dot_output",
    "node_odd_bytes_dot_input",
    "node_odd_bytes_dot_kernel",
    "node_odd_bytes_convolution_output",
    "node_odd_bytes_convolution_input",
    "node_odd_bytes_convolution_kernel",
    "node_odd_bytes_reshape_output",
    "node_odd_bytes_reshape_input",
    "node_deep_bytes",
    "node_deep_inversions",
    "node_deep_minor_bytes",
    "copy_bytes",
    "copy_deep_bytes",
    "copy_count",
    "copy_minor_bytes",
    *(f"loop_{name}" for name in COLUMNS),
)


def layout_features(
    graph,
    count: np.ndarray | None = None,
    statistics: Mapping[str, float] | None = None,
    node_vectors: np.ndarray | None = None,
    pooled: Mapping[str, float] | None = None,
) -> pl.DataFrame:
    """Features float32 of every configuration of `graph`, one row each (node_byte_count float64).

    Parameters
    ----------
    graph: a layout graph, de-duplicated.
    count: int [c], how often each configuration occurs in its file (transductive columns); None
        means once each.
    statistics: the graph's statistics (02), constant columns with the prefix stat_.
    node_vectors: float [n, k], message-passing vectors of the nodes (03); the columns mp_odd_i are
        their means over the odd slots of a configuration, weighted by bytes.
    pooled: the graph's pooled message-passing vector (03), constant columns with the prefix mp_.
    """
    slots = describe_slots(graph)
    flops = node_flops(graph)[graph.config_nodes]
    rows = node_columns(graph, slots, flops) | config_columns(graph)
    rows |= reader_columns(graph, slots, flops, readers(graph))
    rows |= _vector_columns(graph, slots, flops, node_vectors)
    edges = trace_edges(graph, slots)
    facing = edge_rows(edges, slots)
    copies = copy_columns(edges, facing, slots, flops)
    fixed, pairs = edge_sums(graph, edges, facing, slots, np.column_stack([*copies.values()]))
    table = np.column_stack([*rows.values(), fixed])
    sums = config_sum(graph, table)
    sums[:, len(rows) :] += pairs
    features = dict(zip([*rows, *copies], sums.T))
    scale = Scale(slots, flops)
    # A floor in its own right: in whole bytes, so that equal sums stay equal.
    features["node_byte_count"] = byte_count(graph) / scale.bytes
    features |= loop_columns(graph, slots, scale.bytes)
    features |= _relative(features)
    features |= _largest(graph, largest_columns(graph, slots, flops))
    features |= transductive(graph, count)
    constants = prefixed(statistics, "stat_") | prefixed(pooled, "mp_")
    features |= {name: np.full(graph.configs, value) for name, value in constants.items()}
    table = {name: values.astype(np.float32) for name, values in features.items()}
    return pl.DataFrame(table | {"node_byte_count": features["node_byte_count"]})


def transductive(graph, count: np.ndarray | None = None) -> Columns:
    """How often the search of this file came back to a configuration and to its choices.

    Natural logs of shares of the file's configurations. They mean nothing for a new program.
    """
    count = np.ones(graph.configs) if count is None else np.asarray(count, np.float64)
    total = max(count.sum(), 1.0)
    log_share = np.zeros(len(graph.row_layout))
    for j in range(len(graph.config_nodes)):
        here = slice(*graph.row_start[j : j + 2])
        seen = np.bincount(graph.codes[:, j], weights=count, minlength=here.stop - here.start)
        log_share[here] = np.log(np.maximum(seen, 1.0) / total)
    nodes = max(1, len(graph.config_nodes))
    return {
        "trans_config_log_frequency": np.log(count / total),
        "trans_choice_log_frequency": config_sum(graph, log_share) / nodes,
        "trans_choice_log_frequency_min": -_row_max(graph, -log_share),
    }


def _vector_columns(graph, slots: SlotRows, flops: np.ndarray, vectors) -> Columns:
    """Odd bytes times the message-passing vector of the slot's node, float64 [R] each."""
    if vectors is None:
        return {}
    odd = slots.is_set & ~slots.is_default
    cost = (odd * slots.bytes / Scale(slots, flops).bytes)[slots.of_row].sum(1)
    mine = np.asarray(vectors, np.float64)[graph.config_nodes][graph.row_node]
    return {f"mp_odd_{i}": cost * mine[:, i] for i in range(mine.shape[1])}


def _relative(features: Columns) -> Columns:
    """Values in units of the graph: less the mean of its configurations, over their spread."""
    answer = {}
    for name in RELATIVE:
        values = features[name]
        spread = values.std()
        quiet = spread <= 1e-9 * max(1.0, np.abs(values).max(initial=0.0))
        prefix, rest = name.split("_", 1)
        answer[f"{prefix}_rel_{rest}"] = (values - values.mean()) / (1.0 if quiet else spread)
    return answer


def _largest(graph, columns: Columns) -> Columns:
    return {name: _row_max(graph, values) for name, values in columns.items()}


def _row_max(graph, table: np.ndarray) -> np.ndarray:
    """float64 [c]: the largest value of `table` [R] among the rows of each configuration."""
    best = np.full(graph.configs, -np.inf)
    for j, start in enumerate(graph.row_start[:-1]):
        np.maximum(best, table[start:][graph.codes[:, j]], out=best)
    return best


def prefixed(values: Mapping[str, float] | None, prefix: str) -> dict[str, float]:
    """The same values under names that all begin with `prefix`."""
    named = (values or {}).items()
    return {name if name.startswith(prefix) else prefix + name: value for name, value in named}
