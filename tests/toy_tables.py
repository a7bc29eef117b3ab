"""A run whose tables 01-04 are made up, with a target that the features explain."""

from pathlib import Path

import numpy as np
import polars as pl

from utils.dataset import GraphFile
from utils.files import save_npz, write_parquet
from utils.notebook import Run, table_path
from utils.schema import COLLECTIONS, SPLITS

GRAPHS = {"train": 6, "valid": 3, "test": 2}
NAMES = ("cfg_set", "node_odd_work", "copy_bytes", "mp_odd_0", "stat_depth", "noise_0", "noise_1")


def toy_table(file: GraphFile, configs: int = 40) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(features, rows): runtime grows with cfg_set and, in part, with copy_bytes.

    The first two configurations occur three times and twice.
    """
    rng = np.random.default_rng([len(file.id), *file.id.encode()])
    x = rng.random((configs, len(NAMES))).astype(np.float32)
    x[:, NAMES.index("stat_depth")] = rng.random()
    target = np.round(1e6 * (1 + 2 * x[:, 0] + 0.5 * x[:, 2]) * (1 + rng.random()))
    count = np.ones(configs, np.int64)
    count[:2] = 3, 2
    table = pl.DataFrame(dict(zip(NAMES, x.T)))
    if file.tile:
        table = table.with_columns(pl.Series("tile_count", x[:, 2], pl.Float32))
    else:
        table = table.with_columns(
            pl.Series("node_byte_count", x[:, 2], pl.Float64),
            pl.Series("loop_bytes", x[:, 2] + 0.5 * x[:, 6], pl.Float32),
            pl.Series("trans_choice_log_frequency", np.log(x[:, 1] + 0.1), pl.Float32),
        )
    labelled = [None] * configs if file.split == "test" else target
    features = table.select(
        pl.Series("target", labelled, pl.Float64), pl.Series("count", count), *table.columns
    )
    distinct = np.concatenate([np.arange(configs), [0, 0, 1]]).astype(np.int32)
    return features, pl.DataFrame({"distinct": distinct}).with_columns(
        pl.Series("target", target[distinct], pl.Float64)
    )


def toy_run(
    folder: Path,
    collections: tuple[str, ...] = COLLECTIONS,
    graphs: dict[str, int] = GRAPHS,
    configs: int = 40,
) -> Run:
    """A run with every table that 05, 08 and 09 read, and data/solution.npz."""
    files = [
        GraphFile(c, s, f"family{i % 3}.{s}{i}", folder / "data" / f"{c}.{s}{i}.npz", ours=True)
        for c in COLLECTIONS
        if c in collections
        for s in SPLITS
        for i in range(graphs.get(s, 0))
    ]
    run = Run(folder, folder / "data", folder / "out", files, tuple(collections))
    about, solution = [], {}
    for file in files:
        features, rows = toy_table(file, configs)
        target = rows["target"].to_numpy()
        if file.split == "test":
            solution[file.id] = target.astype(np.int64)
            rows = rows.with_columns(pl.lit(None, pl.Float64).alias("target"))
        write_parquet(table_path(run, "features", file), features)
        write_parquet(table_path(run, "rows", file), rows)
        known = file.split != "test"
        about.append(
            {
                "collection": file.collection, "split": file.split, "name": file.name,
                "family": file.family, "nodes": 9, "config_nodes": 3, "configs": len(rows),
                "distinct": len(features), "spread": 2.5 if known else None,
                "ceiling": 0.9 if known else None,
            }
        )  # fmt: skip
    write_parquet(run.out / "tables" / "graphs.parquet", pl.DataFrame(about))
    if solution:
        save_npz(run.data / "solution.npz", **solution)
    return run
