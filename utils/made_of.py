"""Marks that say what a file was made of, so that only what has changed is made again."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import polars as pl

from utils.files import atomic_path
from utils.tars import state

KEY = "made_of"
# What every graph passes through on its way from a file: part of every mark.
READING = "checks coding dataset graph_cache hlo hlo_proto key_table npz schema sources tars"


def mark(modules: str, *parts: object) -> str:
    """A short text that changes with the code of ``modules`` (names of utils, by blanks) and of
    READING, with the size or the time of a part that is a path, and with the value of any other
    part."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted({*READING.split(), *modules.split()}):
        digest.update(_code(name))
    for part in parts:
        if isinstance(part, Path):
            part = (str(part), *state(part))
        digest.update(repr(part).encode())
    return digest.hexdigest()


@cache
def _code(module: str) -> bytes:
    return Path(__file__).with_name(f"{module}.py").read_bytes()


def write_marked(path: Path, table: pl.DataFrame, made_of: str) -> None:
    """Write a table as Parquet with its mark inside."""
    with atomic_path(path) as temporary:
        table.write_parquet(temporary, metadata={KEY: made_of})


def has_mark(path: Path, made_of: str) -> bool:
    """Is there a Parquet file with this mark?"""
    return path.exists() and pl.read_parquet_metadata(path).get(KEY) == made_of
