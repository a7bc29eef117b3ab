"""What the first code cells of every notebook need: the data, the output folder, the files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from utils import cluster, dataset
from utils.schema import COLLECTIONS


@dataclass(frozen=True)
class Run:
    """One run over one data folder."""

    root: Path  # the repository
    data: Path  # the folder that holds layout/ and/or tile/
    out: Path  # everything that the run makes
    files: list[dataset.GraphFile]
    collections: tuple[str, ...]  # those that have files, in the competition's order
    cache: bool = True  # keep coded graphs below out, see `graph_cache`
    dask: str = ""  # address of a Dask scheduler whose workers help; empty: this process alone


def open_run(
    root: Path | str,
    data_dir: str = "",
    out_dir: str = "",
    collections: str = "",
    cache: bool = True,
    dask: str = "",
) -> Run:
    """Find the data, make the output folder and list the graph files.

    `data_dir` is looked for below the current folder, then below `root`; empty: the Kaggle mounts,
    then data/sample. A relative `out_dir` is below `root`, or below the current folder where `root`
    is mounted read-only, as on Kaggle. Empty `collections` (comma separated) takes all. Raises
    DataError for an unknown collection and for a folder without graph files, ClusterError where
    `dask` names no scheduler whose workers can work on this run.
    """
    root = Path(root).resolve()
    data = dataset.find_data(data_dir or None, root)
    files = dataset.index(data, split_names(collections))
    present = {file.collection for file in files}
    below = root if os.access(root, os.W_OK) else Path.cwd()
    out = below / (out_dir or "outputs/sample")
    out.mkdir(parents=True, exist_ok=True)
    if dask:
        cluster.connect(dask, out, data)  # what is wrong there is said now
    return Run(root, data, out, files, tuple(c for c in COLLECTIONS if c in present), cache, dask)


def split_names(text: str) -> list[str]:
    """'tile:xla, layout:xla:random' -> the two names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def table_path(run: Run, kind: str, file: dataset.GraphFile) -> Path:
    """Where the table `kind` ('features', 'rows', 'node_stats', ...) of one graph lies."""
    folder = run.out / "tables" / kind / file.collection.replace(":", "_") / file.split
    return folder / f"{file.name}.parquet"


def require(path: Path | str, notebook: str) -> Path:
    """`path`, or an error that names the notebook (by its number) which writes it."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: run notebook {notebook} first")
    return path
