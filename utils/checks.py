"""What has to hold for the arrays of one file, before any of them is worked with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from utils.npz import DataError, Header
from utils.schema import LAYOUT_KEYS, OPTIONAL_KEYS, TILE_KEYS

if TYPE_CHECKING:
    from utils.dataset import GraphFile
    from utils.sources import Source

STREAMED = "node_config_feat"  # read in blocks of configurations, so it has to be in C order
_COLUMNS = {"node_feat": 140, STREAMED: 18, "config_feat": 24}


def check_headers(file: GraphFile, headers: dict[str, Header]) -> None:
    """Raise `DataError` unless all keys of `utils.schema` are there, typed and shaped as they
    should be."""
    keys = TILE_KEYS if file.tile else LAYOUT_KEYS
    missing = [key for key in keys if key not in headers]
    if missing:
        raise DataError(f"{file.path}: key {', '.join(missing)} is missing")
    _check_columns(file, headers)
    sizes: dict[str, tuple[int, str]] = {}
    for key, (dtype, shape) in (keys | OPTIONAL_KEYS).items():
        header = headers.get(key)
        if header is None:
            continue
        if header.dtype != dtype:
            raise DataError(f"{file.path}: {key} is {header.dtype}, expected {dtype.__name__}")
        if key == STREAMED and header.fortran and min(header.shape) > 1:
            raise DataError(f"{file.path}: {key} is in Fortran order, expected C order")
        if len(header.shape) != len(shape):
            raise DataError(f"{file.path}: {key} has shape {header.shape}, expected {shape}")
        for extent, expected in zip(header.shape, shape):
            if isinstance(expected, int) and extent != expected:
                raise DataError(
                    f"{file.path}: {key} has shape {header.shape}, expected {expected} where it "
                    f"has {extent}"
                )
            known, where = sizes.setdefault(expected, (extent, key))
            if isinstance(expected, str) and known != extent:
                raise DataError(
                    f"{file.path}: {key} has shape {header.shape}, but {where} says {known}"
                )
    if sizes["n"][0] == 0:
        raise DataError(f"{file.path}: no node")
    if sizes["c"][0] == 0:
        raise DataError(f"{file.path}: no configuration")


def _check_columns(file: GraphFile, headers: dict[str, Header]) -> None:
    """Raise `DataError` for files from which somebody removed the columns that are constant."""
    fewer = [
        f"{key} has {headers[key].shape[-1]} of {columns} columns"
        for key, columns in _COLUMNS.items()
        if key in headers and headers[key].shape and 1 < headers[key].shape[-1] < columns
    ]
    if fewer:
        raise DataError(
            f"{file.path}: {', '.join(fewer)}. Were constant columns removed? Which ones can't be "
            "told, and a column's number is its meaning: take the original file"
        )


def check_values(file: GraphFile, source: Source) -> None:
    """Raise `DataError` if a small array holds impossible values."""
    read = source.read
    feat = read("node_feat")
    nodes = len(feat)
    if not np.isfinite(feat).all():
        bad = np.flatnonzero(~np.isfinite(feat).all(1))
        raise DataError(
            f"{file.path}: node_feat holds NaN or infinite values (node {bad[0]}"
            + (f" and {len(bad) - 1} more)" if len(bad) > 1 else ")")
        )
    edges = read("edge_index")
    if edges.size and (edges.min() < 0 or edges.max() >= nodes):
        raise DataError(f"{file.path}: edge_index points outside the {nodes} nodes")
    if (edges[:, 0] == edges[:, 1]).any():
        raise DataError(f"{file.path}: edge_index has an edge from a node to itself")
    runtime = read("config_runtime")
    if (runtime < 0).any():
        raise DataError(f"{file.path}: config_runtime is negative")
    if (missing := (runtime == 0).sum()) not in (0, len(runtime)):
        raise DataError(
            f"{file.path}: config_runtime is 0 for {missing} of {len(runtime)} configurations: "
            "all are 0 (unlabelled) or none"
        )
    for key in OPTIONAL_KEYS:
        if key in source.headers and (read(key) < 0).any():
            raise DataError(f"{file.path}: {key} is negative")
    if file.tile:
        if (read("config_runtime_normalizers") <= 0).any():
            raise DataError(f"{file.path}: config_runtime_normalizers is not positive")
        return
    ids = read("node_config_ids")
    if ids.size and (ids.min() < 0 or ids.max() >= nodes):
        raise DataError(f"{file.path}: node_config_ids points outside the {nodes} nodes")
    if len(np.unique(ids)) != len(ids):
        raise DataError(f"{file.path}: node_config_ids lists a node twice")
