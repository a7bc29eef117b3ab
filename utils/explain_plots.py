"""Pictures of an explanation: a bar chart of its terms, and the neighbourhood in the graph."""

from __future__ import annotations

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import polars as pl
from matplotlib.colors import TwoSlopeNorm

from utils.explain import by_node, label
from utils.plots import PALETTE
from utils.schema import OPCODES
from utils.tensors import node_dimensions, node_rank

SLOWER, FASTER = PALETTE[3], PALETTE[0]
COLOURS = "RdBu_r"
FAINT = 0.03  # of the largest: weaker edges are drawn grey
DARK = 0.6  # of the largest: so dark a node needs white letters


def plot_terms(table: pl.DataFrame, a: str = "a", b: str = "b", top: int = 12) -> plt.Figure:
    """Bars of the largest terms of an explanation, of cost tables or of trees, the rest as one bar.

    `a`, `b`: names of the configurations.
    """
    ordered = table.sort(pl.col("adds").abs(), descending=True)
    shown = ordered.head(top).sort("adds", descending=True)
    names = [label(line) for line in shown.to_dicts()]
    adds = shown["adds"].to_list()
    if len(ordered) > top:
        names.append(f"{len(ordered) - top} smaller ones together")
        adds.append(float(ordered["adds"][top:].sum()))
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.33 * len(names)))
    colours = [SLOWER if value > 0 else FASTER for value in adds]
    axes.barh(range(len(names)), adds, color=colours)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(f"adds to score({a}) - score({b}); larger = slower", loc="right")
    total = float(table["adds"].sum())
    word = "slower" if total >= 0 else "faster"
    figure.suptitle(
        f"{a} is predicted {word} than {b}: {len(table)} terms add up to {total:+.3f}",
        x=0.01, ha="left", fontweight="bold", fontsize=11,
    )  # fmt: skip
    return figure


def neighbourhood(graph, table: pl.DataFrame, nodes: int = 18) -> nx.DiGraph:
    """The graph around the node whose terms weigh most, data flowing along the edges.

    Nodes are taken in breadth-first order, those of the table's terms first among equals. Node
    attributes: adds (0.0 where nothing differs). Edge attributes: adds, and `through` True where
    the tensor passes through nodes that take any layout.
    """
    share = dict(by_node(table).select("node", "adds").iter_rows())
    facing = table.filter(pl.col("other").is_not_null())
    facing = facing.group_by("other", "node").agg(pl.col("adds").sum())
    flow = nx.DiGraph((int(v), int(u)) for u, v in graph.edges)
    flow.add_nodes_from(share)
    if not share:
        return nx.DiGraph()
    centre = max(share, key=lambda node: (abs(share[node]), -node))
    taken, front = {centre: None}, [centre]
    near = nx.Graph(flow)
    near.add_edges_from(facing.select("other", "node").iter_rows())
    while front and len(taken) < nodes:
        reached = {n for node in front for n in near.neighbors(node) if n not in taken}
        front = sorted(reached, key=lambda n: (-abs(share.get(n, 0.0)), n))[: nodes - len(taken)]
        taken |= dict.fromkeys(front)
    part = nx.DiGraph()
    part.add_nodes_from((n, {"adds": share.get(n, 0.0)}) for n in sorted(taken))
    part.add_edges_from(flow.subgraph(taken).edges, adds=0.0, through=False)
    for source, node, adds in facing.sort("other", "node").iter_rows():
        if source in part and node in part:
            through = not flow.has_edge(source, node)
            part.add_edge(source, node, adds=adds, through=through)
    return part


def plot_neighbourhood(graph, table: pl.DataFrame, nodes: int = 18) -> plt.Figure:
    """Draw `neighbourhood`: red makes configuration a slower, blue faster; data flow downwards."""
    part = neighbourhood(graph, table, nodes)
    figure, axes = plt.subplots(figsize=(9, 6.5))
    axes.axis("off")
    if not part:
        axes.set_title("The two configurations do not differ in the eyes of the model", loc="left")
        return figure
    for depth, layer in enumerate(nx.topological_generations(_acyclic(part))):
        nx.set_node_attributes(part, dict.fromkeys(layer, depth), "layer")
    place = nx.multipartite_layout(part, "layer", align="horizontal")
    place = {node: (x, -y) for node, (x, y) in place.items()}
    adds = np.array([value for _, value in part.nodes(data="adds")])
    edges = list(part.edges(data=True))
    strength = np.array([data["adds"] for *_, data in edges])
    largest = max(np.abs(adds).max(), np.abs(strength).max(initial=0.0)) or 1.0
    norm, map_ = TwoSlopeNorm(0.0, -largest, largest), plt.get_cmap(COLOURS)
    nx.draw_networkx_nodes(
        part, place, ax=axes, node_color=map_(norm(adds)), edgecolors="0.4", node_size=1700
    )
    grey, coloured = (
        [(u, v) for (u, v, _), value in zip(edges, strength)
         if (abs(value) > FAINT * largest) == differs]
        for differs in (False, True)
    )  # fmt: skip
    about = {"ax": axes, "node_size": 1700, "arrowsize": 12}
    nx.draw_networkx_edges(part, place, grey, edge_color="0.75", **about)
    if coloured:
        values = np.array([part.edges[edge]["adds"] for edge in coloured])
        nx.draw_networkx_edges(
            part, place, coloured, edge_color=map_(norm(values)), width=2.5,
            connectionstyle="arc3,rad=0.15", **about,
        )  # fmt: skip
    dims, rank = node_dimensions(graph).astype(int), node_rank(graph)
    words = {
        n: f"{OPCODES[graph.opcode[n]]}\n{n}\n" + "x".join(map(str, dims[n][: rank[n]]))
        for n in part
    }
    for colour, dark in (("black", False), ("white", True)):
        some = {n: words[n] for n in part if (abs(part.nodes[n]["adds"]) > DARK * largest) == dark}
        nx.draw_networkx_labels(part, place, some, font_size=6.5, font_color=colour, ax=axes)
    colours = plt.cm.ScalarMappable(norm, map_)
    figure.colorbar(colours, ax=axes, shrink=0.6, label="adds to the difference of scores")
    share = np.abs(adds).sum() / (by_node(table)["adds"].abs().sum() or 1.0)
    title = f"{len(part)} of {len(graph.opcode)} nodes hold {share:.0%} of what differs"
    axes.set_title(title, loc="left")
    return figure


def _acyclic(part: nx.DiGraph) -> nx.DiGraph:
    """A call and its callee may close a cycle with the edges that are drawn through others."""
    if nx.is_directed_acyclic_graph(part):
        return part
    order = {node: i for i, node in enumerate(sorted(part))}
    return nx.DiGraph((u, v) if order[u] < order[v] else (v, u) for u, v in part.edges)
