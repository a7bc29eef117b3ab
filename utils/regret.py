"""What a ranking saves: the slowdown after measuring K configurations, chosen in several ways.

Everything is replayed on measured files, so a configuration costs one measurement whoever asks
for it. Two rankings, by a model that never saw the program's family and by the untrained byte
count, against random draws and a hill climb. Regret is the runtime of the fastest one measured so
far over that of the fastest of the file, minus 1.

``python -m utils.regret DIR`` does so for measured files of your own and the models that were
saved, where these have not seen the program's family.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from utils import evaluate
from utils.coding import deduplicate, read_graph
from utils.command import at_least, fail, run_command
from utils.dataset import DataError, GraphFile, family_of, find_data, index
from utils.graph_cache import cached_graph
from utils.layout_rows import byte_count, default_config
from utils.notebook import Run
from utils.options import ROOT
from utils.plots import PALETTE, model_colour
from utils.progress import progress
from utils.saved_models import RUNS, about, find_model, load_model

KS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 80)
MODEL, BYTES, RANDOM, CLIMB = "model", "byte count", "random", "hill climbing"
COLOURS = {
    MODEL: model_colour("cost_tables"), BYTES: model_colour("byte_count"), CLIMB: PALETTE[1],
    RANDOM: model_colour("random"),
}  # fmt: skip
SCHEMA = {
    "collection": pl.String, "split": pl.String, "name": pl.String, "family": pl.String,
    "configs": pl.Int64, "strategy": pl.String, "k": pl.Int64, "regret": pl.Float64,
}  # fmt: skip


def top_regret(target: np.ndarray, score: np.ndarray, ks: Sequence[int]) -> np.ndarray:
    """float64 [ks]: regret of measuring the k configurations with the lowest scores.

    target, score: float64 [c], smaller = faster; equal scores in order of the file.
    """
    best = np.minimum.accumulate(target[np.argsort(score, kind="stable")])
    return best[np.minimum(ks, len(best)) - 1] / target.min() - 1


def random_regret(target: np.ndarray, ks: Sequence[int]) -> np.ndarray:
    """float64 [ks]: expected regret of k configurations drawn without replacement; exact.

    The i-th fastest of c is the fastest drawn with chance C(c - i, k - 1) / C(c, k).
    """
    ordered = np.sort(target)
    count = len(ordered)
    found = []
    for k in np.minimum(ks, count):
        # Chance that none of the i fastest is drawn: a product of (c - i - j) / (c - j).
        i = np.arange(count + 1)[:, None]
        j = np.arange(k)
        missed = np.prod(np.maximum(count - i - j, 0) / (count - j), axis=1)
        found.append((ordered * -np.diff(missed)).sum() / ordered[0] - 1)
    return np.array(found)


def climb_regret(
    target: np.ndarray, codes: np.ndarray, start: int, ks: Sequence[int], rng: np.random.Generator
) -> np.ndarray:
    """float64 [ks]: regret of a hill climb that measures every step, from configuration `start`.

    It measures next a configuration that differs from the fastest so far in as few operations as
    possible, ties at random. codes: [c, nc], see `coding.Graph`.
    """
    left = np.ones(len(target), bool)
    best, trace = start, []
    far = (codes != codes[start]).sum(1)
    here = start
    for _ in range(min(max(ks), len(target))):
        left[here] = False
        if target[here] < target[best]:
            best, far = here, (codes != codes[here]).sum(1)
        trace.append(target[best])
        if left.any():
            near = np.flatnonzero(left & (far == far[left].min()))
            here = rng.choice(near)
    return np.array(trace)[np.minimum(ks, len(trace)) - 1] / target.min() - 1


def curves(
    run: Run, model: str = "cost_tables", ks: Sequence[int] = KS, climbs: int = 20, seed: int = 0
) -> pl.DataFrame:
    """Regrets of all layout graphs whose family was held out from `model`; columns of SCHEMA.

    Of every graph the first fold assignment and seed that were run. Hill climbs start at the
    compiler's own choice and are averaged over `climbs`. Empty where no such fit was run.
    """
    files = {(f.collection, f.split, f.name): f for f in run.files}
    lines, seen = [], set()
    found = [
        (keys["collection"], path)
        for keys, path in evaluate.prediction_files(run, ["family_cv"])
        if keys["model"] == model
    ]
    for collection, path in progress(found, desc="regret", unit="file"):
        table = pl.read_parquet(path)
        for (split, name), part in table.group_by(["split", "name"], maintain_order=True):
            file = files.get((collection, split, name))
            if file is None or file.tile or file in seen:
                continue
            seen.add(file)
            graph, _, _ = deduplicate(cached_graph(run, file))
            if not graph.labelled:
                continue
            score = evaluate.expand(part, np.arange(graph.configs), path)
            lines += _lines(file, graph, score, ks, climbs, seed)
    return pl.DataFrame(lines, SCHEMA, orient="row")


def replay(
    files: Iterable[GraphFile], models: Path | None = None, ks: Sequence[int] = KS,
    climbs: int = 20, seed: int = 0,
) -> pl.DataFrame:
    """The same for any files, by saved cost tables (`models`: see `saved_models.find_model`).

    Left out are tiles, unlabelled graphs and those of families that the model was trained on.
    Raises DataError where there is no model.
    """
    lines = []
    for file in progress(list(files), desc="regret", unit="graph"):
        if file.tile:
            continue
        stem = find_model(models, file.collection, ["cost_tables"])
        trained = {str(name).split(":")[-1] for name in about(stem).get("trained_on", [])}
        if (file.family or file.name) in {family_of(name, file.ours) or name for name in trained}:
            continue
        graph, _, _ = deduplicate(read_graph(file))
        if graph.labelled:
            score = load_model(stem).score(graph)
            lines += _lines(file, graph, score, ks, climbs, seed)
    return pl.DataFrame(lines, SCHEMA, orient="row")


def _lines(file: GraphFile, graph, score: np.ndarray, ks, climbs: int, seed: int) -> list[tuple]:
    """Rows of SCHEMA for one graph."""
    keys = (file.collection, file.split, file.name, file.family or file.name, graph.configs)
    found = _strategies(graph, score, ks, climbs, seed)
    return [
        (*keys, strategy, k, float(value))
        for strategy, regrets in found.items()
        for k, value in zip(ks, regrets)
        if k <= graph.configs
    ]


def _strategies(graph, score: np.ndarray, ks, climbs: int, seed: int) -> dict[str, np.ndarray]:
    start = default_config(graph)
    rng = np.random.default_rng(seed)
    found = {
        MODEL: top_regret(graph.target, score, ks),
        BYTES: top_regret(graph.target, byte_count(graph), ks),
        RANDOM: random_regret(graph.target, ks),
    }
    if start is not None:
        every = [climb_regret(graph.target, graph.codes, start, ks, rng) for _ in range(climbs)]
        found[CLIMB] = np.mean(every, axis=0)
    return found


def summary(table: pl.DataFrame) -> pl.DataFrame:
    """Of each strategy and k: graphs, median, lower and upper quartile of the regret."""
    regret = pl.col("regret")
    return (
        table.group_by("strategy", "k")
        .agg(
            pl.len().alias("graphs"), regret.median().alias("median"),
            regret.quantile(0.25, "linear").alias("low"),
            regret.quantile(0.75, "linear").alias("high"),
        )
        .sort("strategy", "k")
    )  # fmt: skip


def needed(table: pl.DataFrame, strategy: str, median: float) -> int | None:
    """The fewest measurements, of those in the table, at which a strategy's median regret is at
    most `median`; None if it never is."""
    part = summary(table).filter((pl.col("strategy") == strategy) & (pl.col("median") <= median))
    return part["k"].min()


def sentences(table: pl.DataFrame, k: int = 5) -> list[str]:
    """What the curves say of the model's `k` best against the other strategies."""
    own = summary(table).filter((pl.col("strategy") == MODEL) & (pl.col("k") == k))
    if not len(own):
        return ["no labelled graph of a family that was held out: nothing to compare"]
    median, graphs = own["median"][0], own["graphs"][0]
    said = [f"{graphs} graphs: the {k} best of the model have a median regret of {median:.1%}"]
    for other in (RANDOM, CLIMB, BYTES):
        if other not in table["strategy"]:
            continue
        count = needed(table, other, median)
        if count is not None:
            said.append(
                f"{other} needs {count} measurements for that, {count / k:.1f} times as many"
            )
        else:
            most = summary(table).filter(pl.col("strategy") == other)["k"].max()
            said.append(f"{other} does not get there with {most} measurements")
    return said


def plot_curves(table: pl.DataFrame, title: str) -> plt.Figure:
    """Median regret against the number of measurements, with the quartiles of the graphs."""
    figure, axes = plt.subplots()
    for strategy, colour in COLOURS.items():
        part = summary(table).filter(pl.col("strategy") == strategy)
        if len(part):
            axes.fill_between(part["k"], 100 * part["low"], 100 * part["high"],
                              color=colour, alpha=0.15, linewidth=0)  # fmt: skip
            axes.plot(part["k"], 100 * part["median"], "o-", color=colour, label=strategy)
    axes.set_xscale("log")
    ticks = sorted(set(table["k"]))
    axes.set_xticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("measured configurations")
    axes.set_ylabel("regret: slower than the best of all (%)")
    axes.set_title(title)
    axes.legend()
    return figure


def main(argv: list[str] | None = None) -> int:
    """Command line; prints a table and what it says."""
    parser = argparse.ArgumentParser(
        "python -m utils.regret", description="How many measurements a ranking saves on measured "
        "layout files, by models that have not seen their families."
    )
    parser.add_argument("folder", type=Path, help="a folder such as utils.xla.collect makes")
    parser.add_argument("--model", type=Path, metavar="PATH",
                        help=f"the folder of a run (default: {', else '.join(RUNS)})")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the hill climbs (0)")
    chosen = parser.parse_args(argv)
    try:
        table = replay(index(find_data(chosen.folder, ROOT)), chosen.model, seed=chosen.seed)
    except DataError as error:
        return fail(error)
    if len(table):
        wide = summary(table).pivot("strategy", index="k", values="median")
        print("median regret after measuring k configurations")
        print("    k" + "".join(f"{name:>15}" for name in wide.columns[1:]))
        for k, *values in wide.sort("k").iter_rows():
            cells = (f"{'' if value is None else format(value, '.1%'):>15}" for value in values)
            print(f"{k:>5}" + "".join(cells))
        counts = table.group_by("name", "collection").agg(pl.col("configs").first())["configs"]
        print(f"configurations measured of a graph: {counts.min()} to {counts.max()}")
    print(*sentences(table), sep="\n")
    return 0


if __name__ == "__main__":
    run_command(main)
