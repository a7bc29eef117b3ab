"""Pictures of scores: models against floors and ceiling, graph by graph, ablations, importances."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from utils.plots import COLLECTION_COLOURS, model_colour
from utils.ranking import FLOORS
from utils.report import score_key
from utils.schema import COLLECTIONS

PANELS = {"valid": "Valid split", "family_cv": "Unseen families", "test": "Test split"}
SCORE = "Kendall's tau (tile: 1 - slowdown)"


def plot_scores(records: list[dict], protocols: tuple[str, ...] = ("valid", "family_cv")):
    """One dot a model in each collection, mean over seeds, beside the noise ceiling.

    Ablations are left out. Returns the figure.
    """
    shown = [p for p in protocols if any(r["protocol"] == p for r in records)] or protocols[:1]
    figure, axes = plt.subplots(1, len(shown), figsize=(9, 3.6), sharey=True, squeeze=False)
    collections = [c for c in COLLECTIONS if any(r["collection"] == c for r in records)]
    drawn: dict[str, object] = {}
    for axis, protocol in zip(axes[0], shown):
        for y, collection in enumerate(collections):
            means = _means(records, protocol, collection)
            trained = [m for m in means if m not in (*FLOORS, "ceiling")]
            for model, value in means.items():
                # Trained models are often close together: one above the other, so that all show.
                lift = trained.index(model) - (len(trained) - 1) / 2 if model in trained else 0.0
                mark = "|" if model == "ceiling" else "D" if model in trained else "o"
                drawn[model] = axis.scatter(
                    value, y + 0.16 * lift, s=240 if mark == "|" else 50, marker=mark,
                    linewidths=2.5 if mark == "|" else 0.5, color=model_colour(model),
                    zorder=3 if model in trained else 2,
                )  # fmt: skip
        axis.set_title(_finding(records, protocol))
        axis.set_xlabel(SCORE)
        axis.set_yticks(range(len(collections)), collections)
        axis.set_ylim(len(collections) - 0.5, -0.5)
    names = {"ceiling": "noise ceiling"}
    figure.legend(
        drawn.values(), [names.get(m, m) for m in drawn], loc="outside lower center", ncols=4
    )
    return figure


def _means(records: list[dict], protocol: str, collection: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for r in records:
        if (r["protocol"], r["collection"]) == (protocol, collection) and "/" not in r["model"]:
            pairs = ((r["model"], r[score_key(collection)]), ("ceiling", r["ceiling"]))
            for model, value in pairs:
                if value is not None:
                    values.setdefault(model, []).append(value)
    return {model: float(np.mean(found)) for model, found in values.items()}


def _finding(records: list[dict], protocol: str, model: str = "rank_pairwise") -> str:
    """In how many collections the model is ahead of every floor."""
    ahead = total = 0
    for collection in COLLECTIONS:
        means = _means(records, protocol, collection)
        if model in means:
            total += 1
            ahead += all(means[model] >= means[f] for f in FLOORS if f in means)
    where = PANELS[protocol]
    if not total:
        return f"{where}: floors only"
    return f"{where}: {model} ahead\nof all floors in {ahead} of {total} collections"


def plot_graphs(scores: pl.DataFrame, model: str = "rank_pairwise"):
    """Each graph's score against its noise ceiling, one colour a collection; returns the figure.

    scores: from `evaluate.graph_scores` with ceilings; seeds and fold assignments are averaged.
    """
    table = (
        scores.filter((pl.col("model") == model) & pl.col("rankable"))
        .with_columns(pl.coalesce("tile_score", "tau").alias("score"))
        .group_by("collection", "split", "name")
        .agg(pl.col("score").mean(), pl.col("ceiling").mean())
        .drop_nulls()
    )
    figure, axis = plt.subplots(figsize=(9, 4.5))
    for collection, colour in COLLECTION_COLOURS.items():
        part = table.filter(pl.col("collection") == collection)
        if len(part):
            label = f"{collection} ({len(part)} graphs)"
            axis.scatter(part["ceiling"], part["score"], s=28, alpha=0.8, color=colour, label=label)
    low = min([0.9, *table["ceiling"], *table["score"]]) - 0.03
    axis.axline((1, 1), slope=1, color=model_colour("ceiling"), linewidth=1)
    axis.set(xlim=(max(low, 0) if len(table) == 0 else min(table["ceiling"]) - 0.03, 1.01))
    axis.set_ylim(low, 1.02)
    share = (table["score"] / table["ceiling"]).median() if len(table) else None
    finding = f"half of the graphs are above {share:.0%} of it" if share else "no ceiling is known"
    axis.set_title(f"{model} against the noise ceiling: {finding}")
    axis.set_xlabel("noise ceiling: score of a noise-free oracle (black line: just as good)")
    axis.set_ylabel("score of the model")
    if len(table):
        axis.legend(loc="lower right", frameon=True)
    return figure


def plot_slowdown(scores: pl.DataFrame, models: tuple[str, ...]):
    """How much slower than the fastest the best of the first 1 and 5 is; returns the figure."""
    table = scores.filter(pl.col("rankable") & pl.col("model").is_in(models))
    means = table.group_by("collection", "model").agg(pl.col("slowdown1", "slowdown5").mean())
    collections = [c for c in COLLECTIONS if c in set(means["collection"])]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axis, k in zip(axes, (1, 5)):
        for i, model in enumerate(models):
            part = dict(means.filter(pl.col("model") == model)["collection", f"slowdown{k}"].rows())
            places = np.arange(len(collections)) + (i - len(models) / 2) * 0.2
            values = [100 * part.get(c, np.nan) for c in collections]
            axis.barh(places, values, 0.18, color=model_colour(model), label=model)
        lost = means.filter(pl.col("model") == models[-1])[f"slowdown{k}"].mean()
        loss = "" if lost is None else f": {models[-1]} loses {100 * lost:.1f}%"
        axis.set_title(f"Best of the first {k}" + loss)
        axis.set_xlabel("slower than the fastest of all, %")
        axis.set_yticks(range(len(collections)), collections)
        axis.set_ylim(len(collections) - 0.5, -0.6)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def plot_differences(differences: pl.DataFrame, base: str = "rank_pairwise"):
    """What each ablation gains or loses, with its standard error over families; the figure."""
    models = sorted(set(differences["model"]))
    collections = [c for c in COLLECTIONS if c in set(differences["collection"])]
    figure, axis = plt.subplots(figsize=(9, 0.9 + 0.75 * max(1, len(models))))
    for i, collection in enumerate(collections):
        rows = differences.filter(pl.col("collection") == collection).rows(named=True)
        places = [models.index(r["model"]) + (i - (len(collections) - 1) / 2) * 0.14 for r in rows]
        axis.errorbar(
            [r["difference"] for r in rows], places, xerr=[r["error"] or 0 for r in rows],
            fmt="o", color=COLLECTION_COLOURS[collection], label=collection,
        )  # fmt: skip
    axis.axvline(0, color=model_colour("ceiling"), linewidth=1)
    axis.set_yticks(range(len(models)), models)
    clear = sum(abs(r["difference"]) > 2 * (r["error"] or np.inf) for r in differences.to_dicts())
    axis.set_title(f"{clear} of {len(differences)} differences exceed two standard errors")
    axis.set_xlabel(f"score less that of {base} on the same graphs")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def plot_importances(shares: dict[str, dict[str, float]], top: int = 12):
    """Share of the gain by group of columns, and the strongest columns; returns the figure.

    shares: collection -> column -> share of the gain (`ranking.importances`).
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), width_ratios=(2, 3))
    groups: dict[str, list[float]] = {}
    mean: dict[str, float] = {}
    for i, columns in enumerate(shares.values()):
        for name, share in columns.items():
            groups.setdefault(name.split("_")[0], [0.0] * len(shares))[i] += share
            mean[name] = mean.get(name, 0.0) + share / len(shares)
    start = np.zeros(len(shares))
    palette = plt.get_cmap("tab10")
    for i, (group, values) in enumerate(sorted(groups.items(), key=lambda g: -sum(g[1]))):
        left.barh(list(shares), values, left=start, color=palette(i), label=group)
        start += values
    left.set_xlabel("share of the gain")
    left.set_title("By group of columns")
    left.tick_params(labelsize=8)
    left.invert_yaxis()
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, fontsize=8)
    best = sorted(mean, key=mean.get, reverse=True)[:top]
    right.barh(best, [mean[name] for name in best], color=model_colour("rank_pairwise"))
    right.invert_yaxis()
    right.tick_params(labelsize=8)
    right.set_xlabel("share of the gain, mean over collections")
    strongest = f"{best[0]} is strongest" if best else "no tree has split"
    right.set_title(strongest)
    return figure
