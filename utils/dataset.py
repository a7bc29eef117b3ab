"""Find a folder of TpuGraphs files, list its graphs and validate every file before any work.

The other half of reading, `utils.coding`, turns one file into a coded graph; its names are
importable from here too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path, PurePosixPath

from utils.checks import check_headers, check_values
from utils.coding import (  # noqa: F401
    Graph, config_sum, decode, deduplicate, pair_sum, read_graph, slot_rows,
)
from utils.npz import DataError, open_npz
from utils.progress import progress
from utils.schema import COLLECTIONS, OPTIONAL_KEYS, SPLITS, TILE_COLLECTION
from utils.sources import RAW, open_source, raw_kernels
from utils.tars import SUFFIX, TarProblem, members, state

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
DEPTH = 3  # folders below the one that was named
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
    def size(self) -> int:
        """Bytes of the file."""
        return state(self.path)[0]

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
    (``npz_all/npz``). Where several folders hold graphs, such as ``npz`` and ``pb``, it is the one
    above them all; a ``.tar`` file is its own folder. Raises `DataError` where there is none.
    """
    root = Path(root)
    if data_dir:
        given = Path(data_dir).expanduser()
        places = [given] if given.is_absolute() else [Path.cwd() / given, root / given]
    else:
        places = [*KAGGLE_MOUNTS, root / "data" / "sample"]
    for place in places:
        found = [folder for folder in _folders(place, DEPTH) if _holds_graphs(folder)]
        if found:
            return found[0] if len(found) == 1 else place
    where = data_dir or ", ".join(map(str, places))
    if not any(place.exists() for place in places):
        raise DataError(f"{where}: no such folder")
    if any(place.is_file() for place in places):
        what = "no graph in this tar" if str(where).endswith(SUFFIX) else "a file, not a folder"
        raise DataError(f"{where}: {what}, expected a folder or tar with {EXPECTED}")
    if not any(next(place.rglob("*.npz"), None) for place in places if place.is_dir()):
        raise DataError(f"{where}: no .npz file in this folder")
    raise DataError(f"{where}: not a TpuGraphs folder, expected {EXPECTED}")


def _folders(place: Path, depth: int) -> Iterable[Path]:
    """`place` and the folders below it, nearest first, in order of their names."""
    if place.suffix == SUFFIX and place.is_file():
        yield place
    level = [place] if place.is_dir() else []
    for _ in range(depth + 1):
        yield from level
        level = [sub for folder in level for sub in sorted(folder.iterdir()) if sub.is_dir()]


def _holds_graphs(folder: Path) -> bool:
    return next(_graphs_in(folder), None) is not None


def _graphs_in(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """(collection, split, path) of the files of a folder, npz before raw ones, then of its tars."""
    if folder.is_dir():
        for suffix in (".npz", RAW):
            for collection, split in product(COLLECTIONS, SPLITS):
                place = folder / Path(*collection.split(":")) / split
                for path in sorted(place.glob(f"*{suffix}")):
                    if not path.name.startswith("."):
                        yield collection, split, path
    for tar in [folder] if folder.is_file() else sorted(folder.glob(f"*{SUFFIX}")):
        if tar.is_file():
            yield from _graphs_in_tar(tar)


def _graphs_in_tar(tar: Path) -> Iterator[tuple[str, str, Path]]:
    """By the folders of a member, else by the name of the tar (npz_layout_xla_random_train.tar)."""
    try:
        names = sorted(members(tar), key=lambda name: (name.endswith(RAW), name))
    except (OSError, TarProblem) as error:
        raise DataError(f"{tar}: {getattr(error, 'strerror', None) or error}") from error
    for name in names:
        parts = PurePosixPath(name).parts
        if not name.endswith((".npz", RAW)) or parts[-1].startswith("."):
            continue
        for collection, split in product(COLLECTIONS, SPLITS):
            folders = (*collection.split(":"), split)
            if parts[-1 - len(folders) : -1] == folders or (
                len(parts) == 1 and tar.stem.endswith("_".join(folders))
            ):
                yield collection, split, tar / name


def index(data_dir: str | Path, collections: Iterable[str] | None = None) -> list[GraphFile]:
    """Every graph file below `data_dir` (see `find_data`), by collection, split and name.

    Files (npz or raw) and members of tars; of a graph that is there in several of these forms an
    npz file comes before a raw one, and a file before a member of a tar. `collections` None or
    empty: all five. Raises `DataError` for an unknown collection, where nothing is found, and for
    a graph that is there twice in the same form.
    """
    data_dir = Path(data_dir)
    wanted = list(collections or COLLECTIONS)
    check_names(wanted)
    found: dict[tuple[str, str, str], Path] = {}
    for folder in _folders(data_dir, DEPTH):
        for collection, split, path in _graphs_in(folder):
            key = (collection, split, path.stem)
            first = found.setdefault(key, path)
            # The raw or packed twin of a file is the same graph; two files may be anything.
            if path != first and _form(path) == _form(first):
                raise DataError(f"{path}: the same graph is in {first}: name one of the folders")
            found[key] = min(first, path, key=_form)
    if not any(collection in wanted for collection, _, _ in found):
        raise DataError(f"{data_dir}: no graph of {', '.join(wanted)}, expected {EXPECTED}")
    order = sorted(found, key=lambda k: (COLLECTIONS.index(k[0]), SPLITS.index(k[1]), k[2]))
    ours = _is_ours([found[key] for key in order])
    return [
        file for key in order if key[0] in wanted for file in _graph_files(*key, found[key], ours)
    ]


def check_names(collections: Iterable[str]) -> None:
    """Raises DataError for an unknown collection."""
    for name in collections:
        if name not in COLLECTIONS:
            near = difflib.get_close_matches(name, COLLECTIONS, 1, 0) or COLLECTIONS
            there = ", ".join(COLLECTIONS)
            raise DataError(f"no collection {name!r}: did you mean {near[0]}? There are {there}")


def _form(path: Path) -> tuple[bool, bool]:
    return path.suffix == RAW, not path.is_file()


def _graph_files(
    collection: str, split: str, name: str, path: Path, ours: bool
) -> Iterator[GraphFile]:
    """The graphs of a file: one, but a raw tile file may hold several kernels."""
    file = GraphFile(collection, split, name, path, ours)
    kernels = len(raw_kernels(path)) if file.tile and path.suffix == RAW else 1
    if kernels == 1:
        yield file
    else:
        for kernel in range(kernels):
            yield replace(file, name=f"{name}.{kernel}", kernel=kernel)


def _is_ours(paths: list[Path]) -> bool:
    """Our measured files keep their rounds, a key that the release doesn't have."""
    for path in paths:
        if path.suffix == RAW:
            return False
        try:
            with open_npz(path) as archive:
                return any(f"{key}.npy" in archive.namelist() for key in OPTIONAL_KEYS)
        except DataError:
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
                check_values(file, source)
        except DataError as error:
            problems.append(str(error))
    return problems
