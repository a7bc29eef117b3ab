"""Tables of node vectors for a run, one vector a graph, and a test of what the vectors know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import NearestNeighbors

from utils.cluster import each_graph
from utils.coding import Graph
from utils.dataset import GraphFile
from utils.files import write_parquet
from utils.made_of import has_mark, mark, write_marked
from utils.message_passing import (
    Reducer,
    fit_reducer,
    load_reducer,
    node_inputs,
    node_vectors,
    save_reducer,
)
from utils.notebook import Run, table_path
from utils.npz import DataError
from utils.opcode_groups import GROUPS, opcode_group
from utils.schema import SPLITS
from utils.stat_tables import KEYS
from utils.structure import configurable, read_structure
from utils.tensors import node_bytes

_MADE_BY = "contraction message_passing node_costs opcode_groups structure tensors vector_tables"


def fitting_files(files: Iterable[GraphFile]) -> list[GraphFile]:
    """The graphs to fit on: those of the train split; without any, of the first split there is.

    No runtime is read, so this does not leak a label, but say so where it happens.
    """
    files = list(files)
    for split in SPLITS:
        chosen = [file for file in files if file.split == split]
        if chosen:
            return chosen
    return []


def get_reducer(run: Run, columns: int, seed: int) -> Reducer:
    """The reducer of this run: models/message_passing.npz if it was made of the same graphs and

    settings by the same code, else a new one, saved there.
    """
    path, files = run.out / "models" / "message_passing.npz", fitting_files(run.files)
    made_of = mark(_MADE_BY, columns, seed, *(file.path for file in files))
    if path.exists():
        try:
            reducer = load_reducer(path)
        except DataError:
            pass  # of an older version
        else:
            if reducer.made_of == made_of:
                return reducer
    reducer = replace(fit_reducer(files, columns, seed), made_of=np.array(made_of))
    save_reducer(path, reducer)
    return reducer


def pool(graph: Graph, vectors: np.ndarray) -> dict[str, float]:
    """One vector a graph: ``mp_mean_i`` over all nodes, ``mp_cfg_i`` over the configurable ones

    weighted by bytes (over all nodes where none is configurable, as in tile files).
    """
    weight = node_bytes(graph) * configurable(graph)
    if weight.sum() == 0:
        weight = node_bytes(graph) + 1.0
    means = {"mean": vectors.mean(0, dtype=np.float64), "cfg": weight @ vectors / weight.sum()}
    return {f"mp_{kind}_{i}": float(x) for kind, mean in means.items() for i, x in enumerate(mean)}


def write_vectors(run: Run, reducer: Reducer) -> pl.DataFrame:
    """Node vectors of every graph: tables/node_vectors/... and tables/message_passing.parquet.

    The first hold one row a node, float32 ``mp_0``...; the second, which is returned, the keys and
    `pool`'s columns. What was made of the same file and reducer is not made again.
    """
    light = replace(reducer, fitted_on=reducer.fitted_on[:0])  # thousands of names, in every job
    work = partial(write_graph_vectors, reducer=light)
    each_graph(run, work, [(file,) for file in run.files], "node vectors")
    rows = [pl.read_parquet(table_path(run, "message_passing", file)) for file in run.files]
    table = pl.concat(rows)
    write_parquet(run.out / "tables" / "message_passing.parquet", table)
    return table


def write_graph_vectors(run: Run, file: GraphFile, reducer: Reducer) -> None:
    """The two tables of one graph, see `write_vectors`, unless they are up to date."""
    node_path = table_path(run, "node_vectors", file)
    row_path = table_path(run, "message_passing", file)
    made_of = mark(_MADE_BY, file.path, reducer.made_of.item())
    if has_mark(node_path, made_of) and has_mark(row_path, made_of):
        return
    graph = read_structure(file)
    vectors = node_vectors(graph, reducer)
    columns = {f"mp_{i}": column for i, column in enumerate(vectors.T)}
    write_marked(node_path, pl.DataFrame(columns), made_of)
    keys = dict(zip(KEYS, (file.collection, file.split, file.name)))
    write_marked(row_path, pl.DataFrame([keys | pool(graph, vectors)]), made_of)


def main_neighbour(graph: Graph, consumers: bool) -> np.ndarray:
    """Most frequent opcode group among a node's consumers (or producers), int64 [n]; -1: none."""
    node, other = graph.edges.T[::-1] if consumers else graph.edges.T
    counts = np.zeros((len(graph.opcode), len(GROUPS)))
    np.add.at(counts, (node, opcode_group(graph.opcode)[other]), 1)
    return np.where(counts.any(1), counts.argmax(1), -1)


def sample_nodes(run: Run, files: list[GraphFile], nodes: int, seed: int) -> dict[str, np.ndarray]:
    """About ``nodes`` nodes drawn evenly from ``files``, with what `neighbour_probe` and the map

    need: inputs float32 [s, f], vectors float32 [s, k], group, consumer, producer int64 [s] and
    program str [s].
    """
    rng, parts = np.random.default_rng(seed), []
    for file in files:
        graph = read_structure(file)
        vectors = pl.read_parquet(table_path(run, "node_vectors", file)).to_numpy()
        chosen = rng.permutation(len(vectors))[: max(1, nodes // len(files))]
        parts.append(
            {
                "inputs": node_inputs(graph)[chosen],
                "vectors": vectors[chosen],
                "program": np.repeat(file.name, len(chosen)),
                "group": opcode_group(graph.opcode)[chosen],
                "consumer": main_neighbour(graph, True)[chosen],
                "producer": main_neighbour(graph, False)[chosen],
            }
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def spread_files(files: Iterable[GraphFile], at_most: int, seed: int) -> list[GraphFile]:
    """At most ``at_most`` of the files, drawn evenly over collections, in their order."""
    files = list(files)
    order = np.random.default_rng(seed).permutation(len(files))
    turn: dict[str, int] = {}
    rank = {}
    for i in order:
        rank[i] = turn[files[i].collection] = turn.get(files[i].collection, -1) + 1
    kept = sorted(order, key=lambda i: (rank[i], files[i].id))[:at_most]
    return [files[i] for i in sorted(kept)]


def nearest_alike(
    points: np.ndarray, group: np.ndarray, program: np.ndarray
) -> tuple[float, float]:
    """Share of points [s, d] whose nearest point of another program is of their group, and what

    chance gives. Without the condition a program would be compared with its own repeated layers.
    """
    alike = []
    for name in np.unique(program):
        inside = program == name
        if inside.all():
            return 0.0, 0.0
        search = NearestNeighbors(n_neighbors=1).fit(points[~inside])
        nearest = search.kneighbors(points[inside], return_distance=False)[:, 0]
        alike.append(group[~inside][nearest] == group[inside])
    p = np.bincount(group) / len(group)
    return float(np.concatenate(alike).mean()), float((p**2).sum())


def neighbour_probe(
    seen: dict[str, np.ndarray], unseen: dict[str, np.ndarray], seed: int = 0
) -> pl.DataFrame:
    """Can a node's own columns, its vector, or both tell which operation stands next to it?

    A random forest learns it on nodes of the graphs that the vectors were fitted on and is tested
    on nodes of other graphs. Columns: neighbour ('consumer', 'producer'), columns ('most frequent',
    'own columns', 'node vectors', 'both'), accuracy.
    """
    rows = []
    for neighbour in ("consumer", "producer"):
        train, test = seen[neighbour] >= 0, unseen[neighbour] >= 0
        y, truth = seen[neighbour][train], unseen[neighbour][test]
        if len(y) == 0 or len(truth) == 0:
            continue
        common = np.bincount(y).argmax()
        rows.append((neighbour, "most frequent", float((truth == common).mean())))
        own = [part["inputs"] for part in (seen, unseen)]
        vectors = [part["vectors"] for part in (seen, unseen)]
        both = [np.hstack(pair) for pair in zip(own, vectors)]
        for name, (a, b) in (("own columns", own), ("node vectors", vectors), ("both", both)):
            forest = RandomForestClassifier(60, min_samples_leaf=2, random_state=seed)
            forest.fit(a[train], y)
            rows.append((neighbour, name, float((forest.predict(b[test]) == truth).mean())))
    return pl.DataFrame(rows, schema=["neighbour", "columns", "accuracy"], orient="row")
