"""From graph files to submission.csv in one process and within a budget: the job of the kernel.

What does not fit into the time or the memory is left out and said: first training graphs and
configurations, then validation graphs, last the models of test graphs. Every test graph gets its
row in any case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from utils import metrics
from utils.budget import SECONDS_A_CEILING, SECONDS_A_CHECK, Budget, Size, size_of
from utils.ceiling import noise_ceiling
from utils.coding import read_graph
from utils.dataset import DataError, GraphFile, check_files
from utils.evaluate import score_graph
from utils.kernel_learn import (
    Scorer, describe, describe_sound, fit_all, fit_vectors, learn,
)  # fmt: skip
from utils.layout_rows import byte_count
from utils.message_passing import Reducer
from utils.schema import COLLECTIONS
from utils.submission import FALLBACK, TOP_TILES, write_submission

BYTE_SHARE = 0.4  # of the time that a graph takes: reading it and counting bytes


@dataclass(frozen=True)
class Result:
    """How a collection went. Scores are means over valid graphs: the tile score, else tau."""

    collection: str
    trained_on: int
    rows: int
    graphs: int  # of valid, scored
    scores: dict[str, float]  # model -> score
    ceiling: float | None
    chosen: str


def rank_all(
    files: list[GraphFile], path: Path, budget: Budget, seed: int = 0, threads: int = 4,
    configs: int = 1000,
) -> list[Result]:
    """Train, validate and rank every collection; writes `path` anew after each.

    `configs` of one graph are trained on at most. Damaged training and validation files are left
    out; raises DataError for a test file whose size can't be read, and for no file at all.
    """
    with budget.timed(SECONDS_A_CHECK * len(files)):
        files = without_damaged(files, budget)
        sizes = {file: size_of(file) for file in files}
    order = {f: np.arange(sizes[f].configs) for f in files if f.split == "test"}
    write_orders(path, order)  # a session that is stopped early has a file, too
    reducer = fit_vectors(files, sizes, budget, seed)
    results = []
    waiting = [c for c in COLLECTIONS if any(file.collection == c for file in files)]
    while waiting:
        own = {f: s for f, s in sizes.items() if f.collection == waiting[0]}
        later = {f: s for f, s in sizes.items() if f.collection in waiting[1:]}
        begin = budget.clock()
        result, ranked = rank_collection(own, later, reducer, budget, seed, threads, configs)
        order |= ranked
        write_orders(path, order)
        results.append(result)
        print(line_of(result), f"({budget.clock() - begin:.0f} s)", flush=True)
        waiting.pop(0)
    return results


def without_damaged(files: list[GraphFile], budget: Budget) -> list[GraphFile]:
    """The files without those of train and valid that can't be used."""
    kept, problems = list(files), check_files(files)
    for file in files:
        mine = [text for text in problems if text.startswith(f"{file.path}:")]
        if mine and file.split != "test":
            kept.remove(file)
            budget.leave_out(mine[0])
    return kept


def rank_collection(
    own: dict[GraphFile, Size], later: dict[GraphFile, Size], reducer: Reducer, budget: Budget,
    seed: int, threads: int, configs: int,
) -> tuple[Result, dict[GraphFile, np.ndarray]]:
    """One collection: its result, and the order of every test graph's rows, fastest first.

    own, later: sizes of its files, and of the files of the collections that come after it.
    """
    collection = next(iter(own)).collection
    split = {s: [f for f in own if f.split == s] for s in ("train", "valid", "test")}
    waiting = [s for f, s in (own | later).items() if f.split != "train"]
    spare = budget.left() - budget.needs(waiting)
    learned = split["train"] or split["valid"]
    mine = sum(own[file].seconds for file in learned)
    others = sum(size.seconds for file, size in later.items() if file.split == "train")
    seconds = spare * mine / ((mine + others) or 1.0)
    lessons = learn(learned, own, reducer, budget, seconds, seed, configs)
    if not split["train"]:
        split["valid"] = []  # it was trained on
    scorers: dict[str, Scorer] = {FALLBACK: lambda described: byte_count(described.distinct)}
    try:
        scorers |= fit_all(lessons, budget, seed, threads)
    except DataError as error:
        budget.leave_out(f"{collection}: untrained byte counts only ({error})")
    reserve = [s for f, s in (own | later).items() if f.split == "test" or f in later]
    scores, ceilings = validate(split["valid"], own, scorers, reducer, budget, reserve)
    means = {name: float(np.mean(found)) for name, found in scores.items() if found}
    unknown = "rank_pairwise" if "rank_pairwise" in scorers else FALLBACK
    chosen = max(sorted(means), key=means.get, default=unknown)
    reserve = [s for f, s in later.items() if f.split == "test"]
    ranked = rank_tests(split["test"], own, scorers[chosen], reducer, budget, reserve)
    result = Result(
        collection, len(lessons.tables), sum(len(table) for _, table in lessons.tables),
        len(scores[FALLBACK]), means, float(np.mean(ceilings)) if ceilings else None, chosen,
    )
    return result, ranked


def validate(
    files: list[GraphFile], sizes: dict[GraphFile, Size], scorers: dict[str, Scorer],
    reducer: Reducer, budget: Budget, reserve: Iterable[Size],
) -> tuple[dict[str, list[float]], list[float]]:
    """Scores of every model on each valid graph, and the graphs' noise ceilings.

    reserve: sizes of the graphs that have to be ranked afterwards, whatever happens here.
    """
    scores: dict[str, list[float]] = {name: [] for name in scorers}
    ceilings, seen, unknown = [], 0, 0
    for i in np.random.default_rng(0).permutation(len(files)):
        file, size = files[i], sizes[files[i]]
        left = budget.left() - budget.needs([*reserve, size])
        if left < 0 or not budget.fits(size):
            continue
        seen += 1
        with budget.timed(size.seconds):
            described = describe_sound(file, reducer, budget)
            if described is None or not described.rankable:
                continue
            for name, scorer in scorers.items():
                rows = scorer(described)[described.inverse]
                found = score_graph(described.graph.target, rows, file.tile)
                scores[name].append(found["tile_score" if file.tile else "tau"])
        if left < budget.pace * SECONDS_A_CEILING * (len(files) - seen + 1):
            unknown += 1
        else:
            ceilings.append(noise_ceiling(described.graph))
    if seen < len(files):
        budget.leave_out(f"{files[0].collection}: validated on {seen} of {len(files)} graphs")
    if unknown:
        budget.leave_out(f"{files[0].collection}: no noise ceiling of {unknown} graphs")
    return scores, [ceiling for ceiling in ceilings if ceiling is not None]


def rank_tests(
    files: list[GraphFile], sizes: dict[GraphFile, Size], scorer: Scorer, reducer: Reducer,
    budget: Budget, reserve: Iterable[Size],
) -> dict[GraphFile, np.ndarray]:
    """The order of the rows of each test graph, fastest first: by the model; in haste by the byte
    count; with no time or memory left as they come in the file."""
    order, hurried, unread = {}, 0, 0
    for i, file in enumerate(files):
        size, rest = sizes[file], [sizes[other] for other in files[i + 1 :]]
        left = budget.left() - BYTE_SHARE * budget.needs([*reserve, *rest])
        if left < BYTE_SHARE * budget.needs([size]) or not budget.fits(size):
            unread += 1
            order[file] = np.arange(size.configs)
            continue
        hurry = left < budget.needs([size])
        hurried += hurry
        with budget.timed(size.seconds * (BYTE_SHARE if hurry else 1)):
            try:
                if hurry:
                    score = byte_count(read_graph(file))
                else:
                    described = describe(file, reducer)
                    score = scorer(described)[described.inverse]
            except DataError as error:
                budget.leave_out(f"{error}: its rows in the order of the file")
                score = np.zeros(size.configs)
        order[file] = metrics.ranking(score)
    for many, how in ((hurried, "by its byte count"), (unread, "in the order of its file")):
        if many:
            budget.leave_out(f"{files[0].collection}: {many} of {len(files)} test graphs {how}")
    return order


def write_orders(path: Path, order: dict[GraphFile, np.ndarray]) -> None:
    """Write the submission: five indices of a tile kernel, all of a layout graph."""
    cut = {file: rows[: TOP_TILES if file.tile else None] for file, rows in order.items()}
    write_submission(path, [(file.id, ";".join(map(str, rows))) for file, rows in cut.items()])


def line_of(result: Result) -> str:
    """A collection in one line, such as 'layout:xla:random: trained on ...'."""
    ceiling = "unknown" if result.ceiling is None else f"{result.ceiling:.3f}"
    scores = ", ".join(f"{name} {score:.3f}" for name, score in result.scores.items())
    return (
        f"{result.collection}: trained on {result.rows} configurations of {result.trained_on} "
        f"graphs; {result.graphs} valid graphs: {scores or 'no score'}, noise ceiling {ceiling}; "
        f"test by {result.chosen}"
    )
