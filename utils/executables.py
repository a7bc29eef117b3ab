"""How much executables of one configuration differ, fitted to the repeats of a collection."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from utils.cluster import each_graph
from utils.dataset import GraphFile
from utils.files import write_parquet
from utils.graph_cache import cached_graph
from utils.noise import Executables, fit_executables, repeat_differences
from utils.notebook import Run

TABLE = "executables.parquet"


def fit_collections(run: Run) -> pl.DataFrame:
    """Write tables/executables.parquet, one row a collection: collection, repeats (of labelled
    graphs with rounds), and scale and dof of `noise.fit_executables`."""
    files = [file for file in run.files if file.ours and file.split != "test"]  # with rounds
    found = each_graph(run, graph_differences, [(file,) for file in files], "compare repeats")
    rows = []
    for collection in run.collections:
        mine = [d for file, d in zip(files, found) if file.collection == collection]
        differences = np.concatenate([np.empty(0), *mine])
        rows.append((collection, len(differences), *fit_executables(differences)))
    schema = {
        "collection": pl.String, "repeats": pl.Int64, "scale": pl.Float64, "dof": pl.Float64,
    }  # fmt: skip
    table = pl.DataFrame(rows, schema, orient="row")
    write_parquet(Path(run.out) / "tables" / TABLE, table)
    return table


def graph_differences(run: Run, file: GraphFile) -> np.ndarray:
    """`noise.repeat_differences` of one file."""
    return repeat_differences(cached_graph(run, file))


def of_collections(table: pl.DataFrame) -> dict[str, Executables]:
    """Collection -> what its row of tables/executables.parquet says."""
    return {name: Executables(scale, dof) for name, _, scale, dof in table.iter_rows()}
