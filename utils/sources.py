"""Where the arrays of a graph come from: an npz file, or a raw file of the release (``.pb``).

Either may lie in a tar (`utils.tars`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from utils.hlo import read_layout_pb, read_tile_pb
from utils.npz import DataError, Header, open_npz, read_array, read_blocks, read_headers
from utils.tars import TarProblem, state

if TYPE_CHECKING:
    from utils.dataset import GraphFile

RAW = ".pb"


@dataclass(frozen=True)
class Source:
    """The arrays of one graph by the keys of the schema; a whole one is kept once it was read."""

    headers: dict[str, Header]
    read: Callable[[str], np.ndarray]
    blocks: Callable[[str, int], Iterator[tuple[int, np.ndarray]]]  # see `npz.read_blocks`


@contextmanager
def open_source(file: GraphFile) -> Iterator[Source]:
    """The arrays of a graph. Raises `DataError` naming the file."""
    if file.path.suffix == RAW:
        arrays = _raw_arrays(file)
        headers = {key: Header(a.shape, a.dtype, False) for key, a in arrays.items()}
        yield Source(headers, arrays.__getitem__, partial(_cut, arrays))
        return
    with open_npz(file.path) as archive:
        headers = read_headers(file.path, archive)
        read = cache(partial(read_array, archive))
        yield Source(headers, read, partial(read_blocks, archive))


def _raw_arrays(file: GraphFile) -> dict[str, np.ndarray]:
    if not file.tile:
        return read_layout_pb(file.path)
    kernels = raw_kernels(file.path)
    if file.kernel >= len(kernels):
        raise DataError(f"{file.path}: no kernel {file.kernel}, it has {len(kernels)}")
    return kernels[file.kernel]


def raw_kernels(path: Path) -> list[dict[str, np.ndarray]]:
    """The arrays of every kernel of a raw tile file; the last file is remembered."""
    try:
        return _raw_kernels(path, *state(path))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except TarProblem as error:
        raise DataError(f"{path}: {error}") from None


@lru_cache(maxsize=1)
def _raw_kernels(path: Path, *_state: int) -> list[dict[str, np.ndarray]]:
    return read_tile_pb(path)


def _cut(arrays: dict[str, np.ndarray], key: str, block_bytes: int):
    values = arrays[key]
    step = max(1, block_bytes // max(1, values[:1].nbytes))
    for start in range(0, len(values), step):
        yield start, values[start : start + step]
