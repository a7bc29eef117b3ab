"""A tiny data folder for the whole chain: a few graphs of data/sample, few configurations each."""

from pathlib import Path

import numpy as np

from utils import synthetic
from utils.dataset import GraphFile, index
from utils.files import save_npz
from utils.schema import COLLECTIONS, LAYOUT_KEYS, OPTIONAL_KEYS, TILE_KEYS

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "sample"
GRAPHS = {"train": 4, "valid": 2, "test": 2}
CONFIGS = 40


def source() -> str:
    """Where `build` takes the graphs from: 'sample', or 'synthetic' while there is no sample."""
    return "sample" if next(SAMPLE.glob("layout/*/*/*/*.npz"), None) else "synthetic"


def build(
    folder: Path, graphs: dict[str, int] = GRAPHS, collections: tuple[str, ...] = COLLECTIONS
) -> Path:
    """Write the folder and return it. The smallest file of each family comes first."""
    if source() == "synthetic":
        return synthetic.write_data(
            folder, graphs=graphs, configs=CONFIGS, layers=3, collections=collections
        )
    files = index(SAMPLE, collections)
    with np.load(SAMPLE / "solution.npz") as solution:
        kept: dict[str, np.ndarray] = {}
        for collection in sorted({file.collection for file in files}):
            for split, count in graphs.items():
                here = [f for f in files if f.collection == collection and f.split == split]
                for file in _smallest(here, count):
                    _cut(file, folder)
                    for key in (file.id, f"{file.id}/rounds"):
                        if split == "test" and key in solution:
                            kept[key] = solution[key][:CONFIGS]
    save_npz(folder / "solution.npz", **kept)
    return folder


def _smallest(files: list[GraphFile], count: int) -> list[GraphFile]:
    by_size = sorted(files, key=lambda file: (file.path.stat().st_size, file.name))
    first = {file.family: file for file in reversed(by_size)}  # the smallest of each family
    ordered = sorted(by_size, key=lambda file: first[file.family] is not file)
    return ordered[:count]


def _cut(file: GraphFile, folder: Path) -> None:
    """Copy a file with its first configurations only."""
    keys = (TILE_KEYS if file.tile else LAYOUT_KEYS) | OPTIONAL_KEYS
    with np.load(file.path) as arrays:
        cut = {
            key: arrays[key][:CONFIGS] if keys[key][1][0] == "c" else arrays[key] for key in arrays
        }
    save_npz(folder / file.collection.replace(":", "/") / file.split / file.path.name, **cut)
