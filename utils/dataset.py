"""Find a folder of TpuGraphs files, list its graphs and validate every file before any work.

The other half of reading, `utils.coding`, turns one file into a coded graph; its names are
importable from here too.
"""

from __future__ import annotations

import difflib
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from utils.checks import check_headers, check_values
from utils.coding import (  # noqa: F401
    Graph, config_sum, decode, deduplicate, pair_sum, read_graph, slot_rows,
)
from utils.npz import DataError
from utils.progress import progress
from utils.schema import COLLECTIONS, OPTIONAL_KEYS, SPLITS, TILE_COLLECTION
from utils.sources import open_source

KAGGLE_MOUNTS = (
    Path("/kaggle/input/predict-ai-model-runtime"),
    Path("/kaggle/input/competitions/predict-ai-model-runtime"),
)
EXPECTED = "layout/{xla,nlp}/{default,random}/{train,valid,test}/*.npz and tile/xla/..."

# Names of the release, most specific word first: the first word found in a name is its family,
# so `mask_rcnn_resnet50.4x4.bf16` is mask_rcnn and `mlperf_bert_batch_24_2x2` is bert.
RELEASE_FAMILIES = {
    "mask_rcnn": "mask_?rcnn", "shapemask": "shapemask", "retinanet": "retinanet", "ssd": "ssd",
    "efficientnet": "efficientnet", "mobilenet": "mobilenet", "mnasnet": "mnasnet",
    "inception": "inception", "xception": "xception", "alexnet": "alexnet", "unet": "unet",
    "resnet": "resnet", "albert": "albert", "electra": "electra",
    "talking_heads": "talking.?heads", "bert": "bert|^experts", "transformer": "transformer",
    "trax": "trax",
    "nmt": "nmt", "openai_rnn": "openai", "magenta": "magenta", "brax": "brax", "ncf": "ncf",
    "dlrm": "dlrm", "wavenet": "wave",
}
HASH = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class GraphFile:
    """One file of one graph. `ours`: from a folder measured by this project, not the release."""

    collection: str  # 'layout:xla:random', 'tile:xla'
    split: str
    name: str
    path: Path
    ours: bool = False
    kernel: int = 0  # a raw tile file holds several

    @property
    def id(self) -> str:
        """The graph's ID in a submission."""
        return f"{self.collection}:{self.name}"

    @property
    def family(self) -> str | None:
        return family_of(self.name, self.ours)

    @property
    def tile(self) -> bool:
        return self.collection == TILE_COLLECTION


def family_of(name: str, ours: bool) -> str | None:
    """The program family of a graph's name: graphs of one family never face each other in
    cross-validation.

    In our own data it is the part before the first dot. In the release it is the first family of
    `RELEASE_FAMILIES` whose word the name contains, else the part before the first dot or digit;
    the hashes of test files have none.
    """
    if HASH.fullmatch(name):
        return None
    if ours:
        return name.split(".")[0]
    lower = name.lower()
    for family, word in RELEASE_FAMILIES.items():
        if re.search(word, lower):
            return family
    return re.split(r"[.\d]", lower)[0].strip("_-") or lower


def find_data(data_dir: str | Path | None, root: str | Path) -> Path:
    """The folder that holds ``layout/`` and/or ``tile/``.

    Looks at `data_dir` if given (relative to the current folder, then to `root`), else at Kaggle's
    mounts, else at ``root/data/sample``; the folder may lie up to three levels further down
    (``npz_all/npz``). Raises `DataError` where there is none.
    """
    root = Path(root)
    if data_dir:
        given = Path(data_dir).expanduser()
        places = [given] if given.is_absolute() else [Path.cwd() / given, root / given]
    else:
        places = [*KAGGLE_MOUNTS, root / "data" / "sample"]
    for place in places:
        for folder in _folders(place, depth=3):
            if _holds_graphs(folder):
                return folder
    where = data_dir or root / "data" / "sample"
    if not any(place.is_dir() for place in places):
        raise DataError(f"{where}: no such folder")
    if not any(next(place.rglob("*.npz"), None) for place in places if place.is_dir()):
        raise DataError(f"{where}: no .npz file in this folder")
    raise DataError(f"{where}: not a TpuGraphs folder, expected {EXPECTED}")


def _folders(place: Path, depth: int) -> Iterable[Path]:
    """`place` and the folders below it, nearest first, in order of their names."""
    level = [place] if place.is_dir() else []
    for _ in range(depth + 1):
        yield from level
        level = [sub for folder in level for sub in sorted(folder.iterdir()) if sub.is_dir()]


def _holds_graphs(folder: Path) -> bool:
    return any(
        next((folder / Path(*c.split(":")) / s).glob("*.npz"), None) for c in COLLECTIONS
        for s in SPLITS
    )


def index(data_dir: str | Path, collections: Iterable[str] | None = None) -> list[GraphFile]:
    """Every graph file below `data_dir` (see `find_data`), by collection, split and name.

    `collections` None or empty: all five. Raises `DataError` for an unknown collection and where
    nothing is found.
    """
    data_dir = Path(data_dir)
    wanted = list(collections or COLLECTIONS)
    for name in wanted:
        if name not in COLLECTIONS:
            near = difflib.get_close_matches(name, COLLECTIONS, 1, 0) or COLLECTIONS
            raise DataError(f"no collection {name!r}: did you mean {near[0]}?")
    found = [
        (collection, split, path)
        for collection in COLLECTIONS if collection in wanted
        for split in SPLITS
        for path in sorted((data_dir / Path(*collection.split(":")) / split).glob("*.npz"))
        if not path.name.startswith(".")
    ]
    if not found:
        raise DataError(f"{data_dir}: no graph of {', '.join(wanted)}, expected {EXPECTED}")
    ours = _is_ours([path for _, _, path in found])
    return [GraphFile(c, s, path.name.removesuffix(".npz"), path, ours) for c, s, path in found]


def _is_ours(paths: list[Path]) -> bool:
    """Our measured files keep their rounds, a key that the release doesn't have."""
    for path in paths:
        try:
            with zipfile.ZipFile(path) as archive:
                return any(f"{key}.npy" in archive.namelist() for key in OPTIONAL_KEYS)
        except (OSError, zipfile.BadZipFile):
            continue  # check_files will say so
    return False


def check_files(files: Iterable[GraphFile]) -> list[str]:
    """All problems of all files, one line each naming the file; empty when all is well.

    Cheap: headers, and the values of small arrays. Configurations aren't read.
    """
    files = list(files)
    problems = []
    splits: dict[tuple[str, str], str] = {}
    for file in progress(files, desc="check files", unit="file"):
        first = splits.setdefault((file.collection, file.name), file.split)
        if first != file.split:
            problems.append(f"{file.path}: the same name is in the {first} split")
        try:
            with open_source(file) as source:
                check_headers(file, source.headers)
                check_values(file, source.read)
        except DataError as error:
            problems.append(str(error))
    return problems
