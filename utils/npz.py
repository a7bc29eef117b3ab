"""Read ``.npz`` members without trusting or expanding them.

``np.load`` ignores ``mmap_mode`` for npz and expands a whole member at once. Here the headers are
read alone, and a member can be read in blocks. Inflating is most of the work: isal takes half the
time of zlib for it.
"""

from __future__ import annotations

import io
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from utils.tars import open_bytes

try:
    from isal import igzip_lib, isal_zlib
except ImportError:  # no wheel for this machine
    igzip_lib = None

PIECE_BYTES = 1 << 16  # of deflated data
DEFLATE_LIMIT = 1100  # deflate can't shrink more than 1032 times: a header that says so lies

# All that a damaged file can raise on the way through zipfile, zlib and numpy.
READ_ERRORS = (
    OSError, ValueError, EOFError, RuntimeError, NotImplementedError, KeyError, TypeError,
    SyntaxError, ArithmeticError, MemoryError, tokenize.TokenError, struct.error,
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, *([igzip_lib.error] if igzip_lib else []),
)


class DataError(ValueError):
    """The input is wrong. The message is one line that names the file and says what is wrong."""


@dataclass(frozen=True)
class Header:
    """What the header of an array says about it."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        for extent in self.shape:
            size *= extent  # exact Python integers: numpy's would overflow
        return size


@contextmanager
def open_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    """The zip behind an npz, which may lie in a tar; whatever goes wrong inside comes out as one

    `DataError`.
    """
    try:
        with open_bytes(path) as stream, zipfile.ZipFile(stream) as archive:
            yield archive
    except DataError:
        raise
    except zipfile.BadZipFile as error:
        raise DataError(f"{path}: damaged or not an npz file ({_first_line(error)})") from error
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except READ_ERRORS as error:
        raise DataError(f"{path}: cannot be read ({_first_line(error)})") from error


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def read_headers(path: Path, archive: zipfile.ZipFile) -> dict[str, Header]:
    """Key -> header of every array, checked against the sizes in the zip directory."""
    headers = {}
    for info in archive.infolist():
        key = info.filename.removesuffix(".npy")
        if key in headers:
            raise DataError(f"{path}: key {key} occurs twice")
        with archive.open(info) as stream:
            try:
                headers[key] = header = _header(stream)
            except READ_ERRORS as error:
                why = _first_line(error)
                raise DataError(f"{path}: {key} is not a plain array ({why})") from error
            start = stream.tell()
        if header.nbytes + start != info.file_size:
            raise DataError(
                f"{path}: {key} promises {header.nbytes:,} bytes but holds "
                f"{info.file_size - start:,}"
            )
        if info.file_size > DEFLATE_LIMIT * (info.compress_size + 100):
            raise DataError(f"{path}: {key} promises {info.file_size:,} bytes: impossible")
    return headers


def _header(stream) -> Header:
    version = npy.read_magic(stream)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("holds Python objects")
    if any(extent < 0 for extent in shape):
        raise ValueError(f"has a negative size {shape}")
    return Header(shape, dtype, fortran)


def read_array(archive: zipfile.ZipFile, key: str) -> np.ndarray:
    """The whole array `key`, never unpickled."""
    with _open_member(archive, key) as stream:
        return npy.read_array(stream, allow_pickle=False)


def read_blocks(
    archive: zipfile.ZipFile, key: str, block_bytes: int
) -> Iterator[tuple[int, np.ndarray]]:
    """(first index, block) of `key` cut along its first axis, about `block_bytes` at a time.

    All blocks share one buffer: a block is valid until the next one is asked for.
    """
    with _open_member(archive, key) as stream:
        header = _header(stream)
        shape = header.shape
        row = Header(shape[1:], header.dtype, False).nbytes
        step = max(1, min(shape[0], block_bytes // max(row, 1)))
        buffer = memoryview(bytearray(step * row))
        for start in range(0, shape[0], step):
            rows = min(step, shape[0] - start)
            filled, whole = 0, rows * row
            while filled < whole:
                got = stream.readinto(buffer[filled:whole])
                if not got:
                    raise EOFError(f"{key} ends early")
                filled += got
            yield start, np.frombuffer(buffer[:whole], header.dtype).reshape(rows, *shape[1:])
        stream.read(1)  # reaching the end compares the checksum


def _open_member(archive: zipfile.ZipFile, key: str) -> io.BufferedIOBase | io.RawIOBase:
    info = archive.getinfo(f"{key}.npy")
    encrypted = info.flag_bits & 1
    if igzip_lib and info.compress_type == zipfile.ZIP_DEFLATED and not encrypted:
        return _Inflated(archive, info)
    return archive.open(info)


class _Inflated(io.RawIOBase):
    """A deflated member as a stream. Raises BadZipFile at its end if the checksum is wrong."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        raw = zipfile.ZipInfo(info.filename)  # the same bytes, as if they were stored: no CRC
        raw.orig_filename, raw.flag_bits = info.orig_filename, info.flag_bits
        raw.header_offset = info.header_offset
        raw.compress_size = raw.file_size = info.compress_size
        self.info, self.stream = info, archive.open(raw)
        self.engine = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)
        self.left, self.checksum = info.file_size, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        view = memoryview(buffer).cast("B")
        piece = b""
        while self.left > 0 and len(view) and not piece:
            data = self.stream.read(PIECE_BYTES) if self.engine.needs_input else b""
            if self.engine.needs_input and not data:
                raise EOFError(f"{self.info.filename} ends early")
            piece = self.engine.decompress(data, min(len(view), self.left))
        self.checksum = isal_zlib.crc32(piece, self.checksum)
        self.left -= len(piece)
        if not self.left and self.checksum != self.info.CRC:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file {self.info.filename!r}")
        view[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self.stream.close()
        super().close()
