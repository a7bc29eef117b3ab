"""Closed-form statistics of a graph and of its nodes: shape, work, and where the work sits.

No configuration and no runtime is read: a statistic is a property of the program alone. All are
linear or nearly linear in nodes and edges. Betweenness or closeness, which need a search from
every node, are left out: at 14,000 nodes they take minutes (NetworkX 3).

Sizes are in bytes, work in FLOPs (`utils.node_costs`); "share" is a number from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import numpy as np
import polars as pl

from utils.coding import Graph
from utils.node_costs import bytes_read, node_flops, node_traffic
from utils.npz import DataError
from utils.opcode_groups import GROUPS, opcode_group
from utils.schema import ELEMENT_TYPES, NODE_COLUMN, OPCODE_ID, OPCODES
from utils.structure import (
    Levels,
    configurable,
    find_levels,
    heaviest_path_from,
    heaviest_path_to,
    hops,
    peak_live_bytes,
    to_networkx,
)
from utils.tensors import node_bytes, node_dimensions, node_rank, node_type, opcode_name

LANES, SUBLANES = 128, 8  # a TPU register is 8 x 128; CPU vectors divide it
_TYPE_GROUPS = {
    "f32": "f32 f64",
    "bf16": "bf16 f16",
    "integer": "s8 s16 s32 s64 u8 u16 u32 u64",
    "pred": "pred",
}


@dataclass(frozen=True)
class _Parts:
    """What both kinds of statistics need, computed once."""

    directed: nx.DiGraph
    levels: Levels
    bytes: np.ndarray
    traffic: np.ndarray
    flops: np.ndarray
    chosen: np.ndarray  # bool [n], configurable


def _parts(graph: Graph) -> _Parts:
    directed = to_networkx(graph)
    try:
        levels = find_levels(directed)
    except nx.NetworkXUnfeasible as error:
        where = graph.file.path if graph.file else "graph"
        raise DataError(f"{where}: edge_index has a cycle") from error
    return _Parts(
        directed, levels, node_bytes(graph), node_traffic(graph), node_flops(graph),
        configurable(graph),
    )


def share(part: float, whole: float) -> float:
    """part / whole, 0 where there is nothing to share."""
    return float(part / whole) if whole else 0.0


def evenness(values: np.ndarray) -> float:
    """Entropy of the shares over its maximum log n: 1 all alike, 0 all in one place (or n < 2)."""
    total = values.sum()
    if len(values) < 2 or total <= 0:
        return 0.0
    p = values[values > 0] / total
    # + 0.0 turns the -0.0 of a single share into 0.0.
    return float(-(p * np.log(p)).sum() / np.log(len(values)) + 0.0)


def top_share(values: np.ndarray, fraction: float = 0.1) -> float:
    """Share of the sum that the largest ``fraction`` of the values hold (at least one value)."""
    keep = max(1, round(fraction * len(values)))
    return share(np.sort(values)[-keep:].sum(), values.sum())


def graph_statistics(graph: Graph) -> dict[str, float]:
    """All statistics of one graph. Raises `DataError` if its edges form a cycle."""
    parts = _parts(graph)
    stats = _shape(graph, parts) | _footprint(graph, parts) | _shares(graph, parts)
    return {name: float(value) for name, value in stats.items()}


def _shape(graph: Graph, parts: _Parts) -> dict[str, float]:
    """Depth, width, degrees, components and distances."""
    n, m = len(graph.opcode), len(parts.levels.edges)
    level, edges = parts.levels.level, parts.levels.edges
    into = np.bincount(edges[:, 1], minlength=n)
    out = np.bincount(edges[:, 0], minlength=n)
    width = np.bincount(level)
    components = [len(c) for c in nx.weakly_connected_components(parts.directed)]
    rank = pagerank(parts.directed)
    undirected = parts.directed.to_undirected(as_view=False)
    core = np.fromiter(nx.core_number(undirected).values(), dtype=float)
    span = level[edges[:, 1]] - level[edges[:, 0]]
    near = hops(undirected, np.flatnonzero(parts.chosen))
    roots = graph.node_feat[:, NODE_COLUMN["is_root"]] > 0
    return {
        "nodes": n,
        "edges": m,
        "edges_per_node": share(m, n),
        "computations": roots.sum(),
        "configurable_nodes": parts.chosen.sum(),
        "configurable_share": parts.chosen.mean(),
        "depth": level.max(),
        "depth_per_node": share(level.max(), n),
        "width_max": width.max(),
        "width_mean": width.mean(),
        "width_evenness": evenness(width),
        "in_degree_max": into.max(),
        "in_degree_std": into.std(),
        "out_degree_max": out.max(),
        "out_degree_std": out.std(),
        "fan_out_share": (out > 1).mean(),
        "source_share": (into == 0).mean(),
        "sink_share": (out == 0).mean(),
        "isolated_share": ((into == 0) & (out == 0)).mean(),
        "components": len(components),
        "largest_component_share": share(max(components), n),
        "articulation_share": share(sum(1 for _ in nx.articulation_points(undirected)), n),
        "core_max": core.max(),
        "core_mean": core.mean(),
        "pagerank_max": rank.max(),
        "pagerank_evenness": evenness(rank),
        "skip_edge_share": share((span > 1).sum(), m),
        "edge_span_mean": float(span.mean()) if m else 0.0,
        "hops_to_configurable_mean": float(near[near >= 0].mean()) if (near >= 0).any() else 0.0,
    }


def _footprint(graph: Graph, parts: _Parts) -> dict[str, float]:
    """Totals, critical paths and densities of the computational footprint."""
    n, m = len(graph.opcode), len(parts.levels.edges)
    depth = int(parts.levels.level.max())
    size, traffic, flops = parts.bytes, parts.traffic, parts.flops
    path_bytes = heaviest_path_to(parts.levels, traffic).max()
    path_flops = heaviest_path_to(parts.levels, flops).max()
    live = peak_live_bytes(graph, size)
    return {
        "bytes_total": size.sum(),
        "traffic_total": traffic.sum(),
        "flops_total": flops.sum(),
        "intensity": share(flops.sum(), traffic.sum()),
        "flops_per_node": share(flops.sum(), n),
        "flops_per_edge": share(flops.sum(), m),
        "flops_per_level": share(flops.sum(), depth + 1),
        "traffic_per_node": share(traffic.sum(), n),
        "traffic_per_level": share(traffic.sum(), depth + 1),
        "critical_path_traffic": path_bytes,
        "critical_path_flops": path_flops,
        # Work over span: how many nodes could run side by side on average (Brent).
        "parallelism_traffic": share(traffic.sum(), path_bytes),
        "parallelism_flops": share(flops.sum(), path_flops),
        "bytes_max": size.max(),
        "bytes_evenness": evenness(size),
        "bytes_top_share": top_share(size),
        "flops_evenness": evenness(flops),
        "flops_top_share": top_share(flops),
        "live_bytes_max": live,
        "live_share": share(live, size.sum()),
    }


def _shares(graph: Graph, parts: _Parts) -> dict[str, float]:
    """Which operations, types and shapes the nodes, bytes and FLOPs belong to."""
    group, kind = opcode_group(graph.opcode), node_type(graph)
    size, flops, chosen = parts.bytes, parts.flops, parts.chosen
    rank = node_rank(graph)
    last = node_dimensions(graph)[np.arange(len(rank)), np.maximum(rank - 1, 0)]
    stats = {
        "opcode_evenness": evenness(np.bincount(graph.opcode, minlength=len(OPCODES))),
        "configurable_bytes_share": share(size[chosen].sum(), size.sum()),
        "configurable_traffic_share": share(parts.traffic[chosen].sum(), parts.traffic.sum()),
        "configurable_flops_share": share(flops[chosen].sum(), flops.sum()),
        "rank_mean": rank.mean(),
        "bytes_rank4_share": share(size[rank >= 4].sum(), size.sum()),
        "bytes_lanes_share": share(size[(last > 0) & (last % LANES == 0)].sum(), size.sum()),
        "bytes_sublanes_share": share(size[(last > 0) & (last % SUBLANES == 0)].sum(), size.sum()),
    }
    for i, name in enumerate(GROUPS):
        stats[f"nodes_{name}_share"] = (group == i).mean()
    for i, name in enumerate(GROUPS):
        stats[f"bytes_{name}_share"] = share(size[group == i].sum(), size.sum())
    for name in ("contraction", "reduction", "elementwise"):
        stats[f"flops_{name}_share"] = share(flops[group == GROUPS.index(name)].sum(), flops.sum())
    for name in ("convolution", "dot", "reshape"):
        stats[f"nodes_{name}_share"] = (graph.opcode == OPCODE_ID[name]).mean()
    for name, types in _TYPE_GROUPS.items():
        of_type = np.isin(kind, [ELEMENT_TYPES.index(t) for t in types.split()])
        stats[f"bytes_{name}_share"] = share(size[of_type].sum(), size.sum())
    return stats


def pagerank(directed: nx.DiGraph) -> np.ndarray:
    """PageRank in the direction of data (Page et al. 1999, damping 0.85), float64 [n], sum 1."""
    return np.fromiter(nx.pagerank(directed, max_iter=1000).values(), dtype=float)


def node_statistics(graph: Graph) -> pl.DataFrame:
    """One row a node, in the order of the file. Raises `DataError` if the edges form a cycle.

    - opcode (str), configurable (bool), level and height (edges on the longest path from a source
      and to a sink), level_width (nodes on that level), in_degree, out_degree, core (k-core);
    - bytes, bytes_read, traffic, flops, intensity (FLOPs per byte of traffic);
    - bytes_share, flops_share: of the whole graph;
    - path_traffic, path_flops: the heaviest path through the node over the graph's critical path,
      so 1 means critical;
    - pagerank, pagerank_reverse (against the data) times the number of nodes: 1 is average;
    - hops_from_configurable, hops_to_configurable, hops_to_root (of the last computation): fewest
      edges along the data, null where there is no path.
    """
    parts = _parts(graph)
    directed, levels = parts.directed, parts.levels
    reverse = directed.reverse(copy=False)
    n, ones = len(graph.opcode), np.ones(len(graph.opcode))
    height = heaviest_path_from(levels, ones) - 1
    chosen = np.flatnonzero(parts.chosen)
    core = nx.core_number(directed.to_undirected(as_view=False))

    def through(weight: np.ndarray) -> np.ndarray:
        path = heaviest_path_to(levels, weight) + heaviest_path_from(levels, weight) - weight
        return path / path.max() if path.max() > 0 else path

    distances = {
        "hops_from_configurable": hops(directed, chosen),
        "hops_to_configurable": hops(reverse, chosen),
        "hops_to_root": hops(reverse, np.flatnonzero(graph.node_feat[:, 0] > 0)[-1:]),
    }
    table = pl.DataFrame(
        {
            "opcode": opcode_name(graph),
            "configurable": parts.chosen,
            "level": levels.level.astype(np.int32),
            "height": height.astype(np.int32),
            "level_width": np.bincount(levels.level)[levels.level].astype(np.int32),
            "in_degree": np.bincount(levels.edges[:, 1], minlength=n).astype(np.int32),
            "out_degree": np.bincount(levels.edges[:, 0], minlength=n).astype(np.int32),
            "core": np.fromiter(core.values(), dtype=np.int32),
            "bytes": parts.bytes,
            "bytes_read": bytes_read(graph),
            "traffic": parts.traffic,
            "flops": parts.flops,
            "intensity": parts.flops / np.maximum(parts.traffic, 1.0),
            "bytes_share": parts.bytes / max(parts.bytes.sum(), 1.0),
            "flops_share": parts.flops / max(parts.flops.sum(), 1.0),
            "path_traffic": through(parts.traffic),
            "path_flops": through(parts.flops),
            "pagerank": pagerank(directed) * n,
            "pagerank_reverse": pagerank(reverse) * n,
            **{name: values.astype(np.int32) for name, values in distances.items()},
        }
    )
    return table.with_columns(pl.when(pl.col(x) >= 0).then(pl.col(x)) for x in distances)
