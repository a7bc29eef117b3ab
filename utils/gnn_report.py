"""What notebook 07 shows: how the networks were trained, what was tried, whether they are weak."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from utils.evaluate import prediction_files
from utils.notebook import Run
from utils.plots import COLLECTION_COLOURS, model_colour
from utils.report import score_key
from utils.schema import TILE_COLLECTION

MODEL, WEAK = "gnn", "hist_gbrt/config_only"  # the latter sees no graph
SCHEMA = {
    "collection": pl.String, "model": pl.String, "protocol": pl.String, "seed": pl.Int64,
    "held_out": pl.String, "held_out_tau": pl.Float64, "epochs": pl.Int64, "of": pl.Int64,
    "fit_s": pl.Float64,
}  # fmt: skip


def histories(run: Run, protocols: Iterable[str] = ("valid",)) -> list[dict]:
    """What the fits of all networks noted: collection, model, protocol, seed and their json."""
    found = []
    for keys, path in prediction_files(run, protocols):
        about = path.with_suffix(".json")
        if keys["model"].partition("/")[0] == MODEL and about.exists():
            found.append(keys | json.loads(Path(about).read_text(encoding="utf-8")))
    return found


def trainings(noted: list[dict]) -> pl.DataFrame:
    """One row a fit, the columns of SCHEMA: which families told when to stop, their best tau, the
    epochs that led there and those that were run (`of`)."""
    rows = []
    for fit in noted:
        taus = [h["tau"] for h in fit["history"] if h["tau"] is not None]
        about = {key: fit[key] for key in ("collection", "model", "protocol", "seed", "epochs")}
        about |= {"held_out": ", ".join(fit["held_out"]) or "none", "fit_s": fit["fit_s"]}
        about |= {"held_out_tau": max(taus, default=None), "of": len(fit["history"])}
        rows.append(about)
    return pl.DataFrame(rows, SCHEMA)


def tried(table: pl.DataFrame) -> pl.DataFrame:
    """Best tau of the held-out training families by model and collection, and `layout mean`.

    This is what variants are chosen by; the valid split has no part in it. Of the first seed only:
    another one holds other families out.
    """
    table = table.filter(pl.col("protocol") == "valid")
    table = table.filter(pl.col("seed") == pl.col("seed").min()).with_columns(
        pl.col("collection").str.replace("layout:", "")
    )
    wide = table.pivot(
        "collection", index="model", values="held_out_tau", aggregate_function="mean"
    ).sort("model")
    layouts = [name for name in wide.columns[1:] if name != TILE_COLLECTION]
    mean = pl.mean_horizontal(layouts) if layouts else pl.lit(None, pl.Float64)
    return wide.with_columns(mean.alias("layout mean"))


def plot_curves(noted: list[dict]):
    """Loss and held-out tau by epoch, a line a collection, one panel pair for the first model."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
    model = min((fit["model"] for fit in noted), default=MODEL)
    stopped = []
    for fit in (fit for fit in noted if fit["model"] == model):
        colour = COLLECTION_COLOURS[fit["collection"]]
        epochs = [h["epoch"] for h in fit["history"]]
        left.plot(epochs, [h["loss"] for h in fit["history"]], color=colour)
        known = [(h["epoch"], h["tau"]) for h in fit["history"] if h["tau"] is not None]
        if known:
            right.plot(*zip(*known), color=colour, label=fit["collection"])
            right.axvline(fit["epochs"], color=colour, linewidth=0.8, linestyle=":")
            stopped.append(fit["epochs"])
    left.set(xlabel="epoch", ylabel="loss of the training graphs", yscale="log")
    right.set(xlabel="epoch (dotted: the weights that are kept)", ylabel="tau of held-out families")
    left.set_title(f"{model}: loss")
    median = f"best after {np.median(stopped):.0f} epochs" if stopped else "nothing was held out"
    right.set_title(f"{median} (median)" if stopped else median)
    handles, names = right.get_legend_handles_labels()
    by_name = dict(zip(names, handles))
    figure.legend(by_name.values(), by_name.keys(), loc="outside lower center", ncols=3)
    return figure


def strength(scores: pl.DataFrame, weak: str = WEAK) -> list[str]:
    """Is each network ahead of a model that sees no graph? One line a collection and network.

    scores: from `evaluate.graph_scores`; only graphs, seeds and folds that both have are compared.
    """
    once = ["protocol", "fold_assignment", "seed", "split", "name"]
    table = scores.filter("rankable")
    said = []
    for (collection,), part in table.group_by("collection", maintain_order=True):
        part = part.select(*once, "model", pl.col(score_key(collection)).alias("score"))
        theirs = part.filter(pl.col("model") == weak)
        for model in sorted({m for m in part["model"] if m.partition("/")[0] == MODEL}):
            both = part.filter(pl.col("model") == model).join(
                theirs, on=once, suffix="_weak", nulls_equal=True
            )
            if len(both):
                mine, other = both["score"].mean(), both["score_weak"].mean()
                where = "ahead of" if mine > other else "NOT ahead of"
                said.append(f"{collection}: {model} {mine:.3f}, {where} {weak} {other:.3f}")
    return said or [f"no graph that both {weak} and a network have scored"]


def model_bars(scores: pl.DataFrame, models: Iterable[str]):
    """Mean score of some models in each collection, with the noise ceiling; returns the figure."""
    models = [m for m in models if m in set(scores["model"])]
    collections = [c for c in COLLECTION_COLOURS if c in set(scores["collection"])]
    figure, axis = plt.subplots(figsize=(9, 3.8))
    width, ahead, compared = 0.8 / max(1, len(models)), 0, 0
    for i, collection in enumerate(collections):
        part = scores.filter((pl.col("collection") == collection) & pl.col("rankable"))
        means = dict(part.group_by("model").agg(pl.col(score_key(collection)).mean()).rows())
        networks = [v for m, v in means.items() if m.partition("/")[0] == MODEL and m in models]
        others = [v for m, v in means.items() if m.partition("/")[0] != MODEL and m in models]
        if networks and others:
            compared, ahead = compared + 1, ahead + (max(networks) > max(others))
        for k, model in enumerate(models):
            place, shade = i + (k - (len(models) - 1) / 2) * width, 0.55 if "/" in model else 1.0
            axis.bar(
                place, means.get(model, np.nan), 0.9 * width, color=model_colour(model),
                alpha=shade, label=model if i == 0 else None,
            )  # fmt: skip
        if "ceiling" in part.columns and (top := part["ceiling"].mean()) is not None:
            axis.hlines(top, i - 0.42, i + 0.42, color=model_colour("ceiling"))
    axis.set_xticks(range(len(collections)), [c.removeprefix("layout:") for c in collections])
    axis.set_ylabel("tau (tile: 1 - slowdown)")
    axis.set_title(f"A network is the best of these in {ahead} of {compared} collections")
    figure.legend(loc="outside lower center", ncols=4)
    return figure
