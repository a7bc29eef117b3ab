"""Members of uncompressed ``.tar`` files as if they were files: ``release.tar/npz/.../x.npz``.

Nothing is unpacked: a member is read where it lies in the tar.
"""

from __future__ import annotations

import io
import tarfile
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import BinaryIO

SUFFIX = ".tar"


class TarProblem(ValueError):
    """One line on what is wrong with a tar file."""


def state(path: Path) -> tuple[int, int]:
    """(bytes, time of the last change in ns) of a file or of a member of a tar."""
    tar = _tar_of(path)
    if tar is None:
        found = path.stat()
        return found.st_size, found.st_mtime_ns
    return _place(tar, path)[1], tar.stat().st_mtime_ns


def open_bytes(path: Path) -> BinaryIO:
    """A file or a member of a tar, open for reading. Raises OSError or TarProblem."""
    tar = _tar_of(path)
    if tar is None:
        return open(path, "rb")
    return io.BufferedReader(_Section(tar, *_place(tar, path)), 1 << 16)


def members(tar: Path) -> dict[str, tuple[int, int]]:
    """Name -> (offset, bytes) of every regular file in a tar.

    Raises TarProblem if it is damaged, compressed, holds a name twice, or names a path that leads
    out of its folder (`/x`, `../x`): such a tar is not trusted at all.
    """
    found = tar.stat()
    return _members(tar, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=256)
def _members(tar: Path, size: int, _changed: int) -> dict[str, tuple[int, int]]:
    places: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(tar, "r:") as archive:  # "r:" takes no compressed ones: no seeking there
            for member in archive:
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts:
                    raise TarProblem(f"a member leads out of its folder: {member.name!r}")
                if not member.isfile() or member.issparse():
                    continue
                if str(name) in places:
                    raise TarProblem(f"holds {member.name!r} twice")
                if member.offset_data + member.size > size:
                    raise TarProblem(f"cut off in {member.name!r}")
                places[str(name)] = (member.offset_data, member.size)
    except tarfile.TarError as error:
        raise TarProblem(f"damaged, compressed or not a tar file ({error})") from error
    return places


def _tar_of(path: Path) -> Path | None:
    """The tar that a path leads into, None for a path of its own."""
    for parent in path.parents:
        if parent.suffix == SUFFIX and parent.is_file():
            return parent
    return None


def _place(tar: Path, path: Path) -> tuple[int, int]:
    name = path.relative_to(tar).as_posix()
    places = members(tar)
    if name not in places:
        raise FileNotFoundError(2, "no such member", str(path))
    return places[name]


class _Section(io.RawIOBase):
    """The bytes of a file from `start` on, `size` of them."""

    def __init__(self, path: Path, start: int, size: int) -> None:
        self.file, self.start, self.size, self.at = open(path, "rb", 0), start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self.at = base + offset
        return self.at

    def readinto(self, buffer) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self.size - self.at)]
        self.file.seek(self.start + self.at)
        got = self.file.readinto(view)
        self.at += got
        return got

    def close(self) -> None:
        self.file.close()
        super().close()
