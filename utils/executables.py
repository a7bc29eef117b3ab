"""How much executables of one configuration differ, fitted to the repeats of a collection."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from utils.cluster import each_graph
from utils.dataset import DataError, GraphFile
from utils.files import write_parquet
from utils.graph_cache import cached_graph
from utils.noise import Executables, fit_executables, repeat_differences
from utils.notebook import Run, require

TABLE = "executables.parquet"
SCHEMA = {
    "collection": pl.String, "repeats": pl.Int64, "median": pl.Float64, "beyond_2": pl.Float64,
    "scale": pl.Float64, "dof": pl.Float64,
}  # fmt: skip


def fit_collections(run: Run) -> pl.DataFrame:
    """Write tables/executables.parquet, one row a collection.

    Columns: collection; repeats, of labelled graphs with rounds; median of their differences in
    units of the noise that rounds show; beyond_2, the share of differences more than two units
    from that median (.046 if executables differed no more than their rounds); scale and dof of
    `noise.fit_executables`.
    """
    files = [file for file in run.files if file.ours and file.split != "test"]  # with rounds
    found = each_graph(run, graph_differences, [(file,) for file in files], "compare repeats")
    rows = []
    for collection in run.collections:
        mine = [d for file, d in zip(files, found) if file.collection == collection]
        differences = np.concatenate([np.empty(0), *mine])
        middle = beyond = None
        if len(differences):
            middle = float(np.median(differences))
            beyond = float((np.abs(differences - middle) > 2).mean())
        fit = fit_executables(differences)
        rows.append((collection, len(differences), middle, beyond, *fit))
    table = pl.DataFrame(rows, SCHEMA, orient="row")
    write_parquet(Path(run.out) / "tables" / TABLE, table)
    return table


def graph_differences(run: Run, file: GraphFile) -> np.ndarray:
    """`noise.repeat_differences` of one file."""
    return repeat_differences(cached_graph(run, file))


def of_collections(table: pl.DataFrame) -> dict[str, Executables]:
    """Collection -> what its row of tables/executables.parquet says."""
    rows = table.select("collection", "scale", "dof").iter_rows()
    return {name: Executables(scale, dof) for name, scale, dof in rows}


def read_executables(run: Run) -> dict[str, Executables]:
    """What notebook 01 wrote. Raises DataError where it lacks a collection of the run."""
    path = require(Path(run.out) / "tables" / TABLE, "01")
    found = of_collections(pl.read_parquet(path))
    for collection in run.collections:
        if collection not in found:
            raise DataError(f"{path}: nothing of {collection}, run notebook 01 again")
    return found
