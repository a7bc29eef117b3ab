"""What the first code cells of every notebook need: the data, the output folder, the graph files."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from utils import dataset
from utils.schema import COLLECTIONS


@dataclass(frozen=True)
class Run:
    """One run over one data folder."""

    root: Path  # the repository
    data: Path  # the folder that holds layout/ and/or tile/
    out: Path  # everything that the run makes
    files: list[dataset.GraphFile]
    collections: tuple[str, ...]  # those that have files, in the competition's order


def open_run(root: Path | str, data_dir: str = "", out_dir: str = "", collections: str = "") -> Run:
    """Find the data, make the output folder and list the graph files.

    A relative `data_dir` or `out_dir` is below `root`. An empty `data_dir` searches the Kaggle
    mounts, then data/sample; an empty `collections` (comma separated) takes all.
    Raises DataError for an unknown collection, a missing folder or one without graph files.
    """
    root = Path(root).resolve()
    wanted = parse_collections(collections)
    data = dataset.find_data(str(root / data_dir) if data_dir else None, root)
    files = dataset.index(data, wanted)
    if not files:
        raise dataset.DataError(f"{data}: no graph files of {', '.join(wanted or COLLECTIONS)}")
    present = {file.collection for file in files}
    out = root / (out_dir or "outputs/sample")
    out.mkdir(parents=True, exist_ok=True)
    return Run(root, data, out, files, tuple(c for c in COLLECTIONS if c in present))


def parse_collections(text: str) -> tuple[str, ...] | None:
    """'tile:xla, layout:xla:random' -> names in the competition's order; None means all."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in COLLECTIONS:
            near = difflib.get_close_matches(name, COLLECTIONS, 3, 0.3) or COLLECTIONS
            raise dataset.DataError(f"no collection '{name}'; did you mean {' or '.join(near)}?")
    return tuple(c for c in COLLECTIONS if c in names) or None


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
