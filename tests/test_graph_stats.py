"""Statistics of a hand-made graph by hand, and what must not change them."""

import time
from types import SimpleNamespace

import networkx as nx
import numpy as np
import polars as pl
import pytest

from utils.dataset import DataError
from utils.graph_stats import evenness, graph_statistics, node_statistics, top_share
from utils.notebook import open_run, table_path
from utils.opcode_groups import GROUPS, OPCODE_GROUPS, opcode_group
from utils.schema import NODE_COLUMN, NODE_FEATURES, OPCODE_ID, OPCODES
from utils.stat_tables import (
    KEYS,
    correlation_grid,
    level_profile,
    spread_correlation,
    write_statistics,
)
from utils.structure import find_levels, heaviest_path_from, heaviest_path_to, hops, to_networkx
from utils.synthetic import write_data


def make_graph(nodes, edges, config_nodes=()):
    """nodes: (opcode, dimensions), all f32; edges: (consumer, producer)."""
    feat = np.zeros((len(nodes), len(NODE_FEATURES)), np.float32)
    feat[:, NODE_COLUMN["shape_element_type_is_f32"]] = 1
    for row, (_, dims) in zip(feat, nodes):
        row[NODE_COLUMN["shape_dimensions_0"] :][: len(dims)] = dims
        row[NODE_COLUMN["shape_dimensions_product"]] = np.prod(dims, dtype=np.int64)
    feat[-1, NODE_COLUMN["is_root"]] = 1
    return SimpleNamespace(
        file=None,
        node_feat=feat,
        opcode=np.array([OPCODE_ID[o] for o, _ in nodes], np.uint8),
        edges=np.array(edges, np.int64).reshape(-1, 2),
        config_nodes=np.array(config_nodes, np.int64),
    )


def six_nodes(extra=()):
    """x[8,3] . w[3,5] -> dot[8,5] -> tanh, negate -> add; all sizes in bytes are 4 x elements."""
    nodes = [("parameter", (8, 3)), ("parameter", (3, 5)), ("dot", (8, 5)), ("tanh", (8, 5))]
    nodes += [("negate", (8, 5)), ("add", (8, 5))]
    edges = [(2, 0), (2, 1), (3, 2), (4, 2), (5, 3), (5, 4)]
    graph = make_graph([*extra, *nodes], [(u + len(extra), v + len(extra)) for u, v in edges])
    graph.config_nodes = np.array([2 + len(extra)])
    return graph


GOLDEN = {
    "nodes": 6, "edges": 6, "edges_per_node": 1, "computations": 1, "configurable_nodes": 1,
    "configurable_share": 1 / 6, "depth": 3, "depth_per_node": 0.5, "width_max": 2,
    "width_mean": 1.5, "in_degree_max": 2, "out_degree_max": 2, "fan_out_share": 1 / 6,
    "source_share": 2 / 6, "sink_share": 1 / 6, "isolated_share": 0, "components": 1,
    "largest_component_share": 1, "articulation_share": 1 / 6, "core_max": 2,
    "core_mean": (4 * 2 + 2 * 1) / 6, "skip_edge_share": 0, "edge_span_mean": 1,
    "hops_to_configurable_mean": (1 + 1 + 0 + 1 + 1 + 2) / 6,
    "bytes_total": 96 + 60 + 4 * 160, "flops_total": 240 + 40 + 40 + 40,
    # read + written: dot 96 + 60 + 160, tanh and negate 320 each, add 480
    "traffic_total": 316 + 320 + 320 + 480, "intensity": 360 / 1436, "flops_per_node": 60,
    "flops_per_edge": 60, "flops_per_level": 90, "traffic_per_level": 1436 / 4,
    "critical_path_flops": 240 + 40 + 40, "critical_path_traffic": 316 + 320 + 480,
    "parallelism_flops": 360 / 320, "parallelism_traffic": 1436 / 1116, "bytes_max": 160,
    "flops_top_share": 240 / 360, "bytes_top_share": 160 / 796,
    # dot, tanh and negate at once, or tanh, negate and add
    "live_bytes_max": 480, "live_share": 480 / 796, "rank_mean": 2, "bytes_rank4_share": 0,
    "configurable_bytes_share": 160 / 796, "configurable_flops_share": 240 / 360,
    "configurable_traffic_share": 316 / 1436, "bytes_lanes_share": 0, "bytes_sublanes_share": 0,
    "nodes_contraction_share": 1 / 6, "nodes_elementwise_share": 0.5, "nodes_source_share": 2 / 6,
    "bytes_source_share": 156 / 796, "flops_contraction_share": 240 / 360,
    "flops_elementwise_share": 120 / 360, "nodes_dot_share": 1 / 6, "bytes_f32_share": 1,
}  # fmt: skip


def test_six_nodes_by_hand():
    stats = graph_statistics(six_nodes())
    assert all(isinstance(value, float) and np.isfinite(value) for value in stats.values())
    for name, value in GOLDEN.items():
        assert stats[name] == pytest.approx(value, rel=1e-12), name


def test_node_table_of_six_nodes_by_hand():
    table = node_statistics(six_nodes())
    columns = {
        "opcode": ["parameter", "parameter", "dot", "tanh", "negate", "add"],
        "configurable": [False, False, True, False, False, False],
        "level": [0, 0, 1, 2, 2, 3],
        "height": [3, 3, 2, 1, 1, 0],
        "level_width": [2, 2, 1, 2, 2, 1],
        "in_degree": [0, 0, 2, 1, 1, 2],
        "out_degree": [1, 1, 2, 1, 1, 0],
        "bytes": [96, 60, 160, 160, 160, 160],
        "bytes_read": [0, 0, 156, 160, 160, 320],
        "flops": [0, 0, 240, 40, 40, 40],
        "path_flops": [1, 1, 1, 1, 1, 1],
        "hops_from_configurable": [None, None, 0, 1, 1, 2],
        "hops_to_configurable": [1, 1, 0, None, None, None],
        "hops_to_root": [3, 3, 2, 1, 1, 0],
    }
    for name, values in columns.items():
        assert table[name].to_list() == values, name
    profile = level_profile(table)
    assert profile["nodes"].to_list() == [2, 1, 2, 1]
    assert profile["traffic"].to_list() == profile["critical"].to_list() == [0, 316, 640, 480]
    assert table["flops_share"].sum() == pytest.approx(1)
    assert table["pagerank"].mean() == pytest.approx(1)


def test_an_isolated_node_changes_counts_but_not_paths_or_work():
    plain = graph_statistics(six_nodes())
    more = graph_statistics(six_nodes(extra=[("parameter", (0,))]))
    counted = {"nodes": 7, "components": 2, "isolated_share": 1 / 7, "source_share": 3 / 7}
    for name, value in counted.items():
        assert more[name] == pytest.approx(value), name
    kept = [n for n in GOLDEN if n.startswith(("bytes_", "flops_", "critical", "parallel"))]
    kept = [n for n in kept if not n.endswith("_per_node")]
    kept += ["edges", "depth", "in_degree_max", "intensity", "live_bytes_max"]
    for name in kept:
        assert more[name] == pytest.approx(plain[name]), name


def test_order_of_nodes_does_not_matter():
    """Another topological order of the same graph has the same statistics, node by node."""
    graph = six_nodes()
    order = np.array([1, 0, 2, 4, 3, 5])  # new position -> old node
    position = np.argsort(order)
    other = SimpleNamespace(
        file=None, node_feat=graph.node_feat[order], opcode=graph.opcode[order],
        edges=position[graph.edges][::-1], config_nodes=position[graph.config_nodes],
    )  # fmt: skip
    plain, moved = graph_statistics(graph), graph_statistics(other)
    assert {k: pytest.approx(v) for k, v in plain.items()} == moved
    a, b = node_statistics(graph)[order.tolist()], node_statistics(other)
    for name in a.columns:
        if a[name].dtype == pl.Float64:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-9, err_msg=name)
        else:
            assert a[name].to_list() == b[name].to_list(), name


def test_longest_paths_equal_networkx():
    rng = np.random.default_rng(1)
    pairs = {tuple(sorted(p, reverse=True)) for p in rng.integers(0, 60, (150, 2)).tolist()}
    graph = make_graph([("add", (2,))] * 60, sorted((u, v) for u, v in pairs if u != v))
    weight = rng.integers(0, 9, 60).astype(float)
    directed = to_networkx(graph)
    levels = find_levels(directed)
    assert levels.level.max() == nx.dag_longest_path_length(directed)
    to, from_ = heaviest_path_to(levels, weight), heaviest_path_from(levels, weight)
    for node in range(60):
        up = directed.subgraph(nx.ancestors(directed, node) | {node})
        paths = [p for source in up for p in nx.all_simple_paths(up, source, node)]
        assert to[node] == max([weight[p].sum() for p in paths], default=weight[node])
    assert to.max() == from_.max() == (to + from_ - weight).max()
    assert hops(directed, [0]).tolist() == [
        nx.single_source_shortest_path_length(directed, 0).get(i, -1) for i in range(60)
    ]


def test_cycle_is_a_data_error():
    with pytest.raises(DataError, match="cycle"):
        graph_statistics(make_graph([("add", (2,))] * 3, [(1, 0), (2, 1), (0, 2)]))


def test_evenness_and_top_share():
    assert evenness(np.ones(7)) == pytest.approx(1)
    assert evenness(np.array([0, 5.0, 0])) == 0
    assert evenness(np.array([1.0, 1, 0, 0])) == pytest.approx(0.5)
    assert top_share(np.array([1.0, 2, 3, 4])) == pytest.approx(0.4)
    assert top_share(np.zeros(3)) == 0


def test_every_opcode_is_in_one_group():
    named = [name for names in OPCODE_GROUPS.values() for name in names.split()]
    assert len(named) == len(set(named)) and set(named) <= set(OPCODES)
    for opcode, group in [("dot", "contraction"), ("tanh", "elementwise"), ("while", "call")]:
        assert GROUPS[opcode_group(np.array([OPCODE_ID[opcode]]))[0]] == group


def test_spread_correlation_finds_the_planted_statistic():
    rng = np.random.default_rng(0)
    n = 30
    keys = {"collection": ["tile:xla"] * n, "split": ["train"] * n}
    keys["name"] = [f"g{i}" for i in range(n)]
    spread = rng.random(n) + 1
    noise = {f"noise{i}": rng.random(n) for i in range(20)}
    planted = {"planted": -(spread**3), "twin": spread}
    stats = pl.DataFrame(keys | {"same": np.ones(n)} | planted | noise)
    graphs = pl.DataFrame(keys | {"spread": spread}).with_columns(
        spread=pl.when(pl.col("name") == "g0").then(None).otherwise(pl.col("spread"))
    )
    table = spread_correlation(stats, graphs)
    rho = dict(zip(table["statistic"], table["rho"]))
    assert (rho.pop("planted"), rho.pop("twin")) == (pytest.approx(-1), pytest.approx(1))
    assert "same" not in rho and set(table["graphs"]) == {29}
    threshold = table["threshold"][0]
    assert 0.45 < threshold < 0.75  # far above the .37 that one statistic alone would need
    assert sum(abs(r) > threshold for r in rho.values()) <= 1
    empty = spread_correlation(stats.head(3), graphs)
    assert empty.is_empty() and correlation_grid(empty, 5)[0].empty
    values, text = correlation_grid(table, at_most=3)
    assert values.shape == (3, 1) and values.index[0] == "planted" and "twin" not in values.index
    assert text.loc["planted", "tile:xla"] == "-1.00 *" and "*" not in text.iloc[2, 0]


def test_tables_are_written_and_reused(tmp_path):
    data = write_data(tmp_path / "data", graphs={"train": 1, "test": 1}, configs=6)
    run = open_run(tmp_path, str(data), "out")
    table = write_statistics(run)
    assert len(table) == len(run.files) == 10
    assert table.columns[:3] == list(KEYS)
    paths = [table_path(run, kind, f) for kind in ("node_stats", "graph_stats") for f in run.files]
    before = [p.stat().st_mtime_ns for p in paths]
    paths[0].unlink()
    assert write_statistics(run).equals(table)
    after = [p.stat().st_mtime_ns for p in paths]
    # Only the graph whose table was lost is computed again.
    assert [i for i, (a, b) in enumerate(zip(before, after)) if a != b] == [0, 10]


def test_largest_graph_of_the_release():
    """43,615 nodes and about 80,000 edges, the size of the release's largest graph."""
    rng = np.random.default_rng(0)
    n = 43_615
    consumer = np.repeat(np.arange(1, n), 2)[:80_000]
    reach = np.minimum(rng.geometric(0.02, len(consumer)), consumer)
    edges = np.unique(np.stack([consumer, consumer - reach], 1), axis=0)
    opcodes = rng.choice(["add", "multiply", "dot", "reduce", "broadcast"], n)
    graph = make_graph([(o, (64, 64)) for o in opcodes], edges, np.flatnonzero(opcodes == "dot"))
    start = time.perf_counter()
    stats = graph_statistics(graph)
    middle = time.perf_counter()
    table = node_statistics(graph)
    end = time.perf_counter()
    print(f"{n:,} nodes: graph {middle - start:.1f} s, nodes {end - middle:.1f} s")
    assert stats["nodes"] == n == len(table)
    assert stats["depth"] == table["level"].max() == table["height"].max()
