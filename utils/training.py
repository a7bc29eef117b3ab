"""The rows that a model is trained on, read from the feature tables, and fitting within memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from utils import dask_train, ranking, train_stream
from utils.cluster import connect
from utils.dataset import DataError, GraphFile
from utils.feature_tables import NOT_FEATURES
from utils.notebook import Run, require, table_path
from utils.sampling import sample_by_rank

MEMORY_MB = 4000  # that the features of one fit may take


def read_features(run: Run, file: GraphFile) -> pl.DataFrame:
    """The feature table of one graph: one row a distinct configuration."""
    return pl.read_parquet(require(table_path(run, "features", file), "04"))


def features_of(table: pl.DataFrame) -> tuple[np.ndarray, tuple[str, ...]]:
    """float32 [rows, columns] and the names of the columns."""
    names = feature_names(table.columns)
    return table.select(names).to_numpy().astype(np.float32, copy=False), names


def feature_names(columns: Iterable[str]) -> tuple[str, ...]:
    """Those columns of a feature table that are features."""
    return tuple(name for name in columns if name not in NOT_FEATURES)


def training_rows(
    run: Run, files: Iterable[GraphFile], max_configs: int = 0, seed: int = 0
) -> tuple[np.ndarray, tuple[str, ...], np.ndarray, np.ndarray]:
    """What `stacked_rows` says of the feature tables of `files`, of which it takes `drawn` rows."""
    tables = ((file, drawn(file, read_features(run, file), max_configs, seed)) for file in files)
    return stacked_rows(tables)


def drawn(
    file: GraphFile, table: pl.DataFrame, max_configs: int = 0, seed: int = 0
) -> pl.DataFrame:
    """At most `max_configs` rows of a graph's table (0: all), evenly over its ranks.

    Drawn by `seed` and the graph's name: no other graph changes what is drawn for it.
    """
    if not max_configs or len(table) <= max_configs:
        return table
    draw = np.random.default_rng([seed, zlib.crc32(file.id.encode())])
    return table[sample_by_rank(table["target"].to_numpy(), max_configs, draw)]


def stacked_rows(
    tables: Iterable[tuple[GraphFile, pl.DataFrame]],
) -> tuple[np.ndarray, tuple[str, ...], np.ndarray, np.ndarray]:
    """features float32 [rows, columns], names, target float64 [rows], graph int64 [rows].

    Graphs come in order of their names whatever the order of `tables`.
    Raises DataError when two graphs have different columns.
    """
    parts, names = [], None
    for file, table in tables:
        values, own = features_of(table)
        names = names or own
        if own != names:
            raise DataError(f"{file.path}: other columns of features than the rest")
        parts.append(((file.name, file.split), values, table["target"].to_numpy()))
    if not parts:
        raise DataError("no labelled graph to train on")
    _, values, target = zip(*sorted(parts, key=lambda part: part[0]))
    graph = np.repeat(np.arange(len(parts)), [len(part) for part in target])
    return np.concatenate(values), names, np.concatenate(target), graph


def _in_order(files: Iterable[GraphFile]) -> list[GraphFile]:
    return sorted(files, key=lambda f: (f.name, f.split))


def _sampled(run: Run, file: GraphFile, max_configs: int, seed: int):
    """(features, their names, target) of a graph, see `drawn`."""
    table = drawn(file, read_features(run, file), max_configs, seed)
    return *features_of(table), table["target"].to_numpy()


def fit_ranker(
    run: Run, fit, max_configs: int = 0, threads: int = 2, memory_mb: int = MEMORY_MB
) -> ranking.Ranker:
    """Fit the model of a `study.Fit` as `ranking.fit` does, within about `memory_mb` of features.

    Where they are more, `rank_pairwise` reads the tables graph by graph (`train_stream`), and from
    files under cache/ if even their bins are more; `hist_gbrt`, which cannot, takes fewer
    configurations of each graph. With `run.dask` the workers fit `rank_pairwise` (`dask_train`),
    with the threads and the memory that they have.
    """
    files = _in_order(fit.train)
    tables = [pl.scan_parquet(require(table_path(run, "features", file), "04")) for file in files]
    lengths = [table.select(pl.len()).collect().item() for table in tables]
    rows = [min(length, max_configs or length) for length in lengths]
    schema = tables[0].collect_schema().names()
    columns, names = len(schema), feature_names(schema)
    need = train_stream.memory_mb(sum(rows), columns)
    if fit.model.startswith("rank_pairwise") and (run.dask or need > memory_mb):
        alone = replace(run, files=[])  # parts may travel
        parts = [partial(_part, alone, file, names, max_configs, fit.seed) for file in files]
        if run.dask:
            client = connect(run.dask, run.out, run.data)
            return dask_train.fit(client, fit.model, parts, rows, names, fit.seed)
        disk = Path(run.out) / "cache" if sum(rows) * columns / 2**20 > memory_mb else None
        return train_stream.fit(fit.model, parts, names, fit.seed, threads, disk)
    if need > memory_mb:
        most = int(memory_mb / train_stream.memory_mb(1, columns) / len(tables))
        max_configs = max(2, min(most, max_configs or most))
    values, names, target, graph = training_rows(run, fit.train, max_configs, fit.seed)
    return ranking.fit(fit.model, values, names, target, graph, fit.seed, threads)


def _part(run: Run, file: GraphFile, names: tuple[str, ...], max_configs: int, seed: int):
    values, own, target = _sampled(run, file, max_configs, seed)
    if own != names:
        raise DataError(f"{table_path(run, 'features', file)}: other columns than the rest")
    return values, target
