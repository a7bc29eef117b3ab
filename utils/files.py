"""Files appear whole or not at all: write beside the target, then rename."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl


PREFIX = ".writing-"
DEAD = 3600  # seconds after its last change that a file counts as left over


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path` (made if there is none).

    When the block ends well the file takes the place of `path` in one step; when it raises, or is
    interrupted, the file is removed and `path` stays as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes it private
        os.replace(temporary, path)
    except (OSError, pl.exceptions.ComputeError) as error:  # such as a full disk: name the file,
        why = getattr(error, "strerror", None) or error  # not the temporary one
        number = getattr(error, "errno", None) or errno.EIO
        raise OSError(number, f"cannot be written ({why})", str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: str | Path) -> None:
    """Remove what processes that were killed (SIGKILL) left half written below a folder."""
    for path in Path(folder).rglob(f"{PREFIX}*"):
        try:
            if path.is_file() and path.stat().st_mtime < time.time() - DEAD:
                path.unlink()
        except OSError:  # another run was faster, or it is not ours
            continue


@cache  # it can only be read by setting it, which would disturb other threads
def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: str | Path, obj) -> None:
    """Write `obj` as indented JSON. NaN and infinity, which JSON doesn't have, become null."""
    text = json.dumps(_plain(obj), indent=1, ensure_ascii=False, allow_nan=False)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _plain(obj):
    """`obj` with numpy scalars and arrays, paths and tuples turned into what JSON knows."""
    if isinstance(obj, dict):
        return {str(key): _plain(value) for key, value in obj.items()}
    if isinstance(obj, (list, tuple)):
        return [_plain(value) for value in obj]
    if isinstance(obj, (np.ndarray, np.generic)):
        return _plain(obj.tolist())
    if isinstance(obj, float):
        return obj if np.isfinite(obj) else None
    if isinstance(obj, Path):
        return str(obj)
    return obj


def write_parquet(path: str | Path, frame: pl.DataFrame) -> None:
    """Write a table as Parquet."""
    with atomic_path(path) as temporary:
        frame.write_parquet(temporary)


def save_npz(path: str | Path, **arrays: np.ndarray) -> None:
    """Write arrays as a compressed ``.npz``."""
    with atomic_path(path) as temporary:
        with open(temporary, "wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)
