"""Pictures of what is in a data folder. Each title states what its picture shows, from the data."""

from __future__ import annotations

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import seaborn as sns

from utils.coding import Graph, read_graph
from utils.eda import CHOICES, opcode_name, shares
from utils.notebook import Run
from utils.plots import COLLECTION_COLOURS, PALETTE
from utils.schema import COLLECTIONS, SLOTS, TILE_COLUMNS
from utils.structure import read_structure, to_networkx

LAYOUT = [c for c in COLLECTIONS if c.startswith("layout")]


def _present(table: pl.DataFrame) -> list[str]:
    found = set(table["collection"])
    return [c for c in COLLECTIONS if c in found]


def _pandas(table: pl.DataFrame) -> pd.DataFrame:
    """For seaborn; polars' own way needs pyarrow."""
    return pd.DataFrame(table.to_dict(as_series=False))


def _scale(axis, values: pl.Series, unit: str = "") -> None:
    """Logarithmic if the values span a decade, else linear: a log axis labels decades only."""
    if values.max() >= 10 * values.min() > 0:
        getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_formatter(lambda value, _: f"{value:,.4g}{unit}")


def _nothing(text: str) -> plt.Figure:
    """A figure that says why there is nothing to see."""
    figure, axes = plt.subplots(figsize=(9, 1.2))
    axes.axis("off")
    axes.text(0, 0.5, text, va="center")
    return figure


def plot_sizes(graphs: pl.DataFrame) -> plt.Figure:
    """Nodes against configurations, one point a graph."""
    figure, axes = plt.subplots()
    sns.scatterplot(
        _pandas(graphs), x="nodes", y="configs", hue="collection", style="split",
        hue_order=_present(graphs), palette=COLLECTION_COLOURS, alpha=0.8, ax=axes)
    axes.set(xlabel="nodes of the graph", ylabel="configurations in the file")
    _scale(axes.xaxis, graphs["nodes"])
    _scale(axes.yaxis, graphs["configs"])
    low, high = graphs["nodes"].min(), graphs["nodes"].max()
    axes.set_title(f"{len(graphs):,} graphs of {low:,} to {high:,} nodes, "
                   f"{graphs['configs'].sum():,} configurations")
    sns.move_legend(axes, "upper left", bbox_to_anchor=(1, 1))
    return figure


def _strip(table: pl.DataFrame, column: str, label: str) -> tuple[plt.Figure, plt.Axes]:
    names = _present(table)
    figure, axes = plt.subplots(figsize=(9, 1 + 0.6 * len(names)))
    sns.stripplot(
        _pandas(table), x=column, y="collection", hue="collection", order=names,
        hue_order=names, palette=COLLECTION_COLOURS, alpha=0.7, jitter=0.25, legend=False, ax=axes)
    middle = table.group_by("collection").agg(pl.col(column).median())
    for name, value in middle.iter_rows():
        place = names.index(name)
        axes.plot([value] * 2, [place - 0.35, place + 0.35], color="#222222")
    axes.set(xlabel=f"{label} (line: median)", ylabel="")
    return figure, axes


def plot_spread(graphs: pl.DataFrame) -> plt.Figure:
    """How much there is to gain in each graph: slowest over fastest configuration."""
    table = graphs.filter(pl.col("spread").is_not_null())
    if table.is_empty():
        return _nothing("No labelled graph, so no runtime to look at.")
    figure, axes = _strip(table, "spread", "slowest / fastest configuration")
    _scale(axes.xaxis, table["spread"], "x")
    axes.set_title("In half of the graphs the slowest takes "
                   f"{table['spread'].median():.2f} times as long as the fastest or more")
    return figure


def plot_curves(curves: pl.DataFrame) -> plt.Figure:
    """Sorted runtimes of every graph, one panel a collection."""
    if curves.is_empty():
        return _nothing("No labelled graph, so no runtime to look at.")
    names = _present(curves)
    figure, panels = plt.subplots(1, len(names), figsize=(9, 3.2),
                                  sharey=True, squeeze=False)
    for axes, name in zip(panels[0], names):
        for _, one in curves.filter(pl.col("collection") == name).group_by("split", "name"):
            axes.plot(one["quantile"], one["slowdown"], color=COLLECTION_COLOURS[name], lw=0.8,
                      alpha=0.5)
        axes.set(xlabel="share of configurations")
        axes.set_title(name, fontsize=9)
        _scale(axes.yaxis, curves["slowdown"], "x")
    panels[0, 0].set_ylabel("runtime / fastest")
    middle = curves.filter(pl.col("quantile") == 0.5)["slowdown"].median()
    figure.suptitle(f"A configuration taken blindly is {middle:.2f} times as slow as the fastest "
                    "(median of all graphs)", x=0.01, ha="left", fontweight="bold", fontsize=11)
    return figure


def plot_repeats(graphs: pl.DataFrame) -> plt.Figure:
    """Share of configurations that their file has already."""
    table = graphs.with_columns(repeated=1 - pl.col("distinct") / pl.col("configs"))
    figure, axes = _strip(table, "repeated", "share of rows that repeat a configuration")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    most = table.sort("repeated", "collection", "name").row(-1, named=True)
    axes.set_title(f"{1 - table['distinct'].sum() / table['configs'].sum():.0%} of all rows repeat "
                   f"a configuration, at most {most['repeated']:.0%} in one file")
    return figure


def plot_ceiling(graphs: pl.DataFrame) -> plt.Figure:
    """What a noise-free oracle would score, against how well measurements repeat."""
    table = graphs.filter(pl.col("ceiling").is_not_null() & pl.col("repeatability").is_not_null())
    if table.is_empty():
        return _nothing("Nothing was measured twice, so the noise and the ceiling are unknown.")
    figure, axes = plt.subplots()
    sns.scatterplot(
        _pandas(table), x="repeatability", y="ceiling", hue="collection",
        hue_order=_present(table), palette=COLLECTION_COLOURS, alpha=0.8, ax=axes)
    low = min(table["repeatability"].min(), table["ceiling"].min(), 0.9)
    axes.plot([low, 1], [low, 1], color="#888888", lw=1, ls="--")
    axes.set(xlabel="Kendall's tau between two halves of the measurements",
             ylabel="ceiling: score of an oracle\n(layout: tau, tile: tile score)")
    layout = table.filter(pl.col("collection").is_in(LAYOUT))
    shown = layout if len(layout) else table
    halves, oracle = shown["repeatability"].median(), shown["ceiling"].median()
    axes.set_title(f"Halves of the measurements agree at tau {halves:.2f}; "
                   f"an oracle would score {oracle:.2f} (medians)")
    sns.move_legend(axes, "upper left", bbox_to_anchor=(1, 1))
    return figure


def plot_operations(counts: pl.DataFrame) -> plt.Figure:
    """Shares of the commonest operations in each collection."""
    names = _present(counts)
    table = _pandas(shares(counts, "operation", most=15))
    wide = table.pivot(index="value", columns="collection", values="share").fillna(0)[names]
    wide = wide.loc[wide.mean(axis=1).sort_values(ascending=False).index]
    figure, axes = plt.subplots(figsize=(9, 5))
    sns.heatmap(wide, annot=True, fmt=".0%", cmap="crest", cbar=False, ax=axes)
    axes.set(xlabel="", ylabel="operation")
    axes.tick_params(axis="x", rotation=15)
    axes.set_title(f"Share of nodes: {wide.index[0]} is the commonest operation")
    return figure


def plot_layouts(counts: pl.DataFrame) -> plt.Figure:
    """What configurations say about each slot, one panel a collection."""
    table = counts.filter(pl.col("collection").is_in(LAYOUT))
    names = _present(table)
    if not names:
        return _nothing("No layout collection here.")
    figure, panels = plt.subplots(1, len(names), figsize=(9, 3.2),
                                  sharey=True, squeeze=False)
    for axes, name in zip(panels[0], names):
        own = table.filter(pl.col("collection") == name)
        left = np.zeros(len(SLOTS))
        wide = np.array([[_share(own, slot, choice) for slot in SLOTS] for choice in CHOICES])
        for choice, values, colour in zip(CHOICES, wide, ("#d0d0d0", PALETTE[0], PALETTE[1])):
            axes.barh(SLOTS, values, left=left, color=colour, label=choice)
            left += values
        axes.set(xlabel="share of choices", xlim=(0, 1))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_title(name, fontsize=9)
        axes.invert_yaxis()
    figure.legend(*panels[0, 0].get_legend_handles_labels(), ncols=3, loc="outside lower center")
    other = np.mean([_share(table, "output", choice) for choice in CHOICES[2:]])
    figure.suptitle(f"{other:.0%} of the output layouts chosen are set and not row-major", x=0.01,
                    ha="left", fontweight="bold", fontsize=11)
    return figure


def _share(counts: pl.DataFrame, what: str, value: str) -> float:
    own = counts.filter(pl.col("what") == what)
    total = own["count"].sum()
    return own.filter(pl.col("value") == value)["count"].sum() / total if total else 0.0


def plot_rows(counts: pl.DataFrame) -> plt.Figure:
    """How many different rows a configurable node takes."""
    table = counts.filter(pl.col("what") == "rows").with_columns(pl.col("value").cast(pl.Int64))
    if table.is_empty():
        return _nothing("No layout collection here.")
    figure, axes = plt.subplots()
    sns.ecdfplot(
        _pandas(table), x="value", weights="count", hue="collection", hue_order=_present(table),
        palette=COLLECTION_COLOURS, ax=axes)
    axes.set(xlabel="different rows (layouts of all three slots) of a node",
             ylabel="share of configurable nodes")
    _scale(axes.xaxis, table["value"])
    sns.move_legend(axes, "upper left", bbox_to_anchor=(1, 1))
    total = table.group_by("value").agg(pl.col("count").sum()).sort("value")
    middle = total.filter(pl.col("count").cum_sum() >= total["count"].sum() / 2)["value"][0]
    axes.set_title(f"Half of the configurable nodes take at most {middle} different rows, "
                   f"none more than {total['value'].max():,}")
    return figure


def plot_tiles(run: Run, most: int = 6) -> plt.Figure:
    """Volume of the output tile against the slowdown, for the first labelled tile kernels."""
    column = TILE_COLUMNS.index("output_bounds_product")
    figure, axes = plt.subplots()
    shown, correlation, volumes, slowdowns = 0, [], [], []
    for file in run.files:
        graph = read_graph(file) if file.tile and file.split != "test" and shown < most else None
        if graph is None or not graph.labelled or len(np.unique(graph.config_feat[:, column])) < 3:
            continue
        volume, slowdown = graph.config_feat[:, column], graph.target / graph.target.min()
        axes.scatter(volume, slowdown, s=14, alpha=0.7, color=PALETTE[shown], label=file.name)
        ranks = [values.argsort().argsort() for values in (volume, slowdown)]
        correlation.append(np.corrcoef(*ranks)[0, 1])
        volumes.append(volume)
        slowdowns.append(slowdown)
        shown += 1
    if not shown:
        plt.close(figure)
        return _nothing("No labelled tile kernel with three different tiles here.")
    axes.set(xlabel="elements of the output tile", ylabel="normalized runtime / fastest")
    _scale(axes.xaxis, pl.Series(np.concatenate(volumes)))
    _scale(axes.yaxis, pl.Series(np.concatenate(slowdowns)), "x")
    middle = np.median(correlation)
    axes.set_title(f"{'Larger' if middle < 0 else 'Smaller'} tiles tend to be faster: median rank "
                   f"correlation of volume and runtime {middle:+.2f}")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    return figure


def smallest_graph(run: Run, nodes: int = 12) -> Graph | None:
    """The smallest layout graph of at least so many nodes, else the largest; else a kernel's."""
    known = pl.read_parquet(run.out / "tables" / "graphs.parquet")
    table = known.filter(pl.col("collection").is_in(LAYOUT))
    table = (table if len(table) else known).sort("nodes", "collection", "name")
    enough = table.filter(pl.col("nodes") >= nodes)
    row = enough.row(0, named=True) if len(enough) else table.row(-1, named=True)
    ids = (row["collection"], row["split"], row["name"])
    return read_structure(next(f for f in run.files if (f.collection, f.split, f.name) == ids))


def draw_graph(graph: Graph) -> plt.Figure:
    """The graph from its parameters (left) to its root (right), nodes named by operation."""
    directed = to_networkx(graph)
    for level, nodes in enumerate(nx.topological_generations(directed)):
        for node in nodes:
            directed.nodes[node]["level"] = level
    for node, data in directed.nodes.items():  # parameters and constants: just before their users
        users = [directed.nodes[user]["level"] for user in directed.successors(node)]
        if users and directed.in_degree(node) == 0:
            data["level"] = min(users) - 1
    place = nx.multipartite_layout(directed, subset_key="level")
    settable = set([] if graph.config_nodes is None else graph.config_nodes.tolist())
    names = [opcode_name(code) for code in graph.opcode]
    source = {node for node, degree in directed.in_degree if degree == 0}
    colour = [PALETTE[1] if n in settable else "#e0e0e0" if n in source else PALETTE[9]
              for n in directed]
    figure, axes = plt.subplots(figsize=(9, 5))
    small = len(names) <= 80
    look = {"arrowsize": 8} if small else {"arrows": False, "width": 0.5}  # arrows are slow
    nx.draw_networkx_edges(directed, place, ax=axes, edge_color="#aaaaaa", **look)
    size = 160 if small else 20
    nx.draw_networkx_nodes(directed, place, ax=axes, node_color=colour, node_size=size)
    if small:
        labels = nx.draw_networkx_labels(
            directed, place, dict(enumerate(names)), font_size=7, ax=axes, clip_on=False,
            verticalalignment="bottom", horizontalalignment="left")
        for label in labels.values():
            label.set(rotation=40, rotation_mode="anchor")
    axes.axis("off")
    axes.set_title(f"{graph.file.name}: {len(names):,} nodes, {len(settable):,} of them "
                   "configurable (orange)")
    return figure
