"""Pictures of notebook 10: speed by size of the graph, and accuracy against cost."""

from __future__ import annotations

from collections.abc import Iterable

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from utils.benchmark import BASE
from utils.plots import model_colour
from utils.report import score_key
from utils.schema import LAYOUT_COLLECTIONS

AREA_OF_MB = 2.0  # points squared of a marker, a MB of peak memory
LEAST_AREA = 30.0


def tradeoff(
    records: Iterable[dict], table: pl.DataFrame, protocol: str = "valid"
) -> pl.DataFrame:
    """One row a measured model: tau, its standard deviation, microseconds, peak_mb, nodes.

    records: of metrics.json; tau is the mean over the layout collections that all measured models
    have, then over seeds and fold assignments, `sd` over these (null for one). table: from
    `benchmark.run`; microseconds for one configuration from memory on its largest graph.
    """
    largest = table.filter(pl.col("nodes") == pl.col("nodes").max())
    measured = {row["model"]: row for row in largest.to_dicts()}
    taus: dict[str, dict[str, dict[tuple, float]]] = {model: {} for model in measured}
    for r in records:
        layout = r["collection"] in LAYOUT_COLLECTIONS and r["protocol"] == protocol
        if layout and r["model"] in taus and r["tau"] is not None:
            draw = (r["fold_assignment"], r["seed"])
            taus[r["model"]].setdefault(r["collection"], {})[draw] = r["tau"]
    known = [model for model in measured if taus[model]]
    shared = set.intersection(*(set(taus[model]) for model in known)) if known else set()
    rows = []
    for model in known if shared else ():
        of = [taus[model][collection] for collection in sorted(shared)]
        draws = set.intersection(*(set(values) for values in of))
        means = [float(np.mean([values[draw] for values in of])) for draw in sorted(draws, key=str)]
        row = measured[model]
        rows.append({
            "model": model, "tau": float(np.mean(means)) if means else None,
            "sd": float(np.std(means, ddof=1)) if len(means) > 1 else None,
            "microseconds": 1e6 / row["memory_per_s"], "peak_mb": row["peak_mb"],
            "nodes": row["nodes"],
        })  # fmt: skip
    kinds = dict.fromkeys(("tau", "sd", "microseconds", "peak_mb"), pl.Float64)
    return pl.DataFrame(rows, {"model": pl.String} | kinds | {"nodes": pl.Int64})


def plot_tradeoff(points: pl.DataFrame):
    """Tau against microseconds per configuration, memory as area; returns the figure."""
    figure, axis = plt.subplots(figsize=(9, 4.2))
    for row in points.drop_nulls(["tau"]).to_dicts():
        area = max(LEAST_AREA, AREA_OF_MB * (row["peak_mb"] or 0.0))
        axis.errorbar(
            row["microseconds"], row["tau"], yerr=row["sd"], color=model_colour(row["model"])
        )
        axis.scatter(
            row["microseconds"], row["tau"], s=area, color=model_colour(row["model"]), alpha=0.7
        )
        memory = "" if row["peak_mb"] is None else f"\n{row['peak_mb']:,.0f} MB"
        axis.annotate(
            row["model"] + memory, (row["microseconds"], row["tau"]), xytext=(8, 8),
            textcoords="offset points", fontsize=8,
        )  # fmt: skip
    axis.set_xscale("log")
    axis.margins(x=0.2, y=0.25)
    nodes = points["nodes"].max()
    where = f"on a graph of {nodes:,} nodes" if nodes else ""
    axis.set_xlabel(f"microseconds a configuration, from memory, {where}")
    axis.set_ylabel("tau, valid split, layout collections")
    axis.set_title(_finding(points))
    return figure


def _finding(points: pl.DataFrame) -> str:
    known = points.drop_nulls(["tau"]).filter(pl.col("model") != "byte_count")
    if not len(known):
        return "No trained model was scored"
    best = known.sort("tau", descending=True).row(0, named=True)
    fast = known.sort("microseconds").row(0, named=True)
    if best["model"] == fast["model"]:
        return f"{best['model']} ranks best and costs least"
    times = best["microseconds"] / fast["microseconds"]
    gap = best["tau"] - fast["tau"]
    cheap = f"{fast['model']} costs {times:,.0f} times less"
    return f"{best['model']} ranks best, by {gap:.3f}; {cheap}"


def plot_speed(table: pl.DataFrame):
    """Configurations a second against nodes, from memory and from a file; returns the figure."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    for axis, column, title in zip(
        axes, ("memory_per_s", "file_per_s"), ("From memory", "From a file")
    ):
        for model in table["model"].unique(maintain_order=True):
            part = table.filter(pl.col("model") == model).sort("nodes")
            style = "--" if "/" in model else "-"
            axis.plot(
                part["nodes"], part[column], style, marker="o", color=model_colour(model),
                label=model,
            )  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="nodes of the graph")
        axis.set_title(f"{title}: {_fastest(table, column)}")
    axes[0].set_ylabel("configurations a second")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def _fastest(table: pl.DataFrame, column: str) -> str:
    """The least lead of the fastest trained tree model over the network, over all graphs."""
    leads = []
    for _, part in table.group_by("nodes", "configs"):
        network = part["model"].str.split("/").list.first() == BASE
        trees = ~network & (part["model"] != "byte_count")
        mine, theirs = part.filter(trees)[column].max(), part.filter(network)[column].max()
        if mine and theirs:
            leads.append(mine / theirs)
    return f"trees at least {min(leads):,.1f} times\nas fast as the network" if leads else "trees"
