"""The kernel's training set and its rankers: what is kept of a graph, and what is fitted to it.

The numbered notebooks keep every table on disk; here a graph is read, described and forgotten, and
only the configurations that are trained on stay in memory. The functions are the same, and so are
the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl

from utils import cost_study, cost_tables, ranking
from utils.budget import FEWEST, SECONDS_A_FIT, SECONDS_A_ROW, Budget, Size
from utils.coding import Graph, deduplicate, read_graph, take
from utils.cost_graphs import Prepared, prepare, sample
from utils.cost_rows import cost_rows
from utils.cost_study import FULL
from utils.dataset import DataError, GraphFile
from utils.feature_tables import distinct_table
from utils.graph_stats import graph_statistics
from utils.message_passing import MAX_FIT_NODES, Reducer, fit_reducer, node_vectors
from utils.training import drawn, features_of, stacked_rows
from utils.vector_tables import fitting_files, pool

VECTOR_COLUMNS = 16  # of a node, as in notebook 03
VECTOR_SHARE = 0.1  # of the time: fitting the node vectors
BYTES_A_VECTOR = 12_000  # a node that they are fitted on
FIT_SHARE = 0.5  # of a collection's time for training: the trees; the rest: reading its graphs


@dataclass(frozen=True)
class Described:
    """One graph with everything that its features are made of."""

    file: GraphFile
    graph: Graph  # every row of the file
    distinct: Graph  # each configuration once
    inverse: np.ndarray  # int64 [rows of the file]: which of `distinct` each is
    count: np.ndarray  # int64 [distinct]
    statistics: dict[str, float]
    vectors: np.ndarray  # float32 [n, VECTOR_COLUMNS]
    pooled: dict[str, float]

    @property
    def rankable(self) -> bool:
        """Are there two distinct configurations of different runtime?"""
        target = self.distinct.target
        return self.graph.labelled and target.min() < target.max()


@dataclass(frozen=True)
class Lessons:
    """What is kept of the training graphs of a collection."""

    tables: list[tuple[GraphFile, pl.DataFrame]]  # features of the configurations drawn
    costs: list[Prepared]  # the same for cost tables; empty for tile kernels


Scorer = Callable[[Described], np.ndarray]  # scores float64 [distinct], larger = slower


def fit_vectors(files, sizes: dict[GraphFile, Size], budget: Budget, seed: int) -> Reducer:
    """The reducer of node vectors, fitted on as many training graphs as the budget allows."""
    train = fitting_files(files)
    kept, guess = set(), 0.0
    for i in np.random.default_rng(seed).permutation(len(train)):
        more = guess + replace(sizes[train[i]], configs=0).seconds
        in_time = more * budget.pace < VECTOR_SHARE * budget.left()
        if not kept or (in_time and budget.fits(sizes[train[i]])):
            kept.add(train[i])
            guess = more
    if len(kept) < len(train):
        budget.leave_out(f"node vectors fitted on {len(kept)} of {len(train)} graphs")
    nodes = int(min(MAX_FIT_NODES, 0.5 * budget.free() / BYTES_A_VECTOR))
    chosen = [file for file in train if file in kept]
    with budget.timed(guess):
        return fit_reducer(chosen, VECTOR_COLUMNS, seed, max_nodes=max(nodes, 1000))


def learn(
    files: list[GraphFile], sizes: dict[GraphFile, Size], reducer: Reducer, budget: Budget,
    seconds: float, seed: int, configs: int,
) -> Lessons:
    """Read training graphs in random order until `seconds` or the memory are used up."""
    width = float(np.mean([sizes[file].width for file in files])) if files else 0.0
    rows = budget.rows(FIT_SHARE * seconds, width)
    most = min(configs or rows, max(FEWEST, rows // max(1, len(files))))
    lessons, begin, bad, cut = Lessons([], []), budget.clock(), 0, False
    for i in np.random.default_rng(seed).permutation(len(files)):
        file, size = files[i], sizes[files[i]]
        spent = budget.clock() - begin + budget.pace * size.seconds
        if spent > (1 - FIT_SHARE) * seconds or (len(lessons.tables) + 1) * most > rows:
            break
        if not budget.fits(size):
            continue
        with budget.timed(size.seconds):
            described = describe_sound(file, reducer, budget)
            if described is None:
                continue
            if not described.rankable:
                bad += 1
                continue
            _, table = next(tables(described, budget))
            cut |= described.distinct.configs > most
            lessons.tables.append((file, drawn(file, table, most, seed)))
            if not file.tile:
                lessons.costs.append(sample(prepare(file), most))
    about = files[0].collection if files else ""
    if len(lessons.tables) + bad < len(files):
        budget.leave_out(f"{about}: trained on {len(lessons.tables)} of {len(files)} graphs")
    if cut:
        budget.leave_out(f"{about}: trained on {most} configurations of a graph at most")
    return lessons


def describe(file: GraphFile, reducer: Reducer) -> Described:
    """Read a graph; its statistics, node vectors and distinct configurations."""
    graph = read_graph(file)
    vectors = node_vectors(graph, reducer)
    parts = (*deduplicate(graph), graph_statistics(graph), vectors, pool(graph, vectors))
    return Described(file, graph, *parts)


def describe_sound(file: GraphFile, reducer: Reducer, budget: Budget) -> Described | None:
    """`describe`, or None for a damaged file, which is then left out and said."""
    try:
        return describe(file, reducer)
    except DataError as error:
        budget.leave_out(str(error))
        return None


def tables(described: Described, budget: Budget) -> Iterator[tuple[slice, pl.DataFrame]]:
    """Tables of features of the distinct configurations that each slice chooses.

    One table where the memory allows; else several of every k-th configuration. Columns in units
    of the graph's spread then come from a sample of it.
    """
    parts = -(-described.distinct.configs // budget.at_once())
    if parts > 1:
        budget.leave_out(f"{described.file.id}: features made in {parts} parts")
    for i in range(parts):
        chosen = slice(i, None, parts)
        part = take(described.distinct, chosen) if parts > 1 else described.distinct
        yield chosen, distinct_table(
            part, described.count[chosen], described.statistics, described.vectors,
            described.pooled,
        )


def fit_all(lessons: Lessons, budget: Budget, seed: int, threads: int) -> dict[str, Scorer]:
    """Every ranker of the repository, fitted: name -> function from a graph to its scores."""
    values, names, target, graph = stacked_rows(lessons.tables)
    guess = SECONDS_A_FIT + SECONDS_A_ROW * len(values)
    with budget.timed(guess):
        ranker = ranking.fit("rank_pairwise", values, names, target, graph, seed, threads)
    scorers = {"rank_pairwise": partial(score_pairwise, ranker, budget, threads)}
    if lessons.costs:
        # As in notebook 06: several families tell how costs grow with size, one doesn't.
        several = len({g.file.family or g.file.name for g in lessons.costs}) > 1
        gamma = cost_tables.LOG
        if several:
            gamma = cost_study.default_gamma([graph.file for graph in lessons.costs])
        with budget.timed(guess):
            model = cost_study.fit_variant(FULL, lessons.costs, gamma, seed, threads)
        scorers["cost_tables"] = partial(score_costs, model, threads)
    return scorers


def score_pairwise(ranker, budget: Budget, threads: int, described: Described) -> np.ndarray:
    """Scores of `rank_pairwise`, float64 [distinct]."""
    score = np.empty(described.distinct.configs)
    for chosen, table in tables(described, budget):
        values, names = features_of(table)
        score[chosen] = ranking.predict(ranker, values, names, threads)
    return score


def score_costs(model, threads: int, described: Described) -> np.ndarray:
    """Scores of `cost_tables`, float64 [distinct]."""
    graph = described.distinct
    prepared = Prepared(described.file, graph, cost_rows(graph))
    return cost_study.score(FULL, model, prepared, threads)
