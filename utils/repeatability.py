"""Print how well each measured graph repeats: is there something to rank?

    python -m utils.repeatability [DIR]

For every layout graph the Kendall's tau between two halves of its rounds, and how much slower its
slowest configuration is than its fastest; then medians per collection. Test files are unlabelled,
so theirs come from DIR/solution.npz.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from utils.ceiling import repeatability
from utils.command import fail, run_command
from utils.dataset import DataError, GraphFile, find_data, index, read_graph
from utils.options import ROOT


def measured(file: GraphFile, solution: Mapping[str, np.ndarray]):
    """The graph with its runtimes, for a test file out of ``solution``."""
    graph = read_graph(file)
    if graph.labelled or file.id not in solution:
        return graph
    return replace(graph, runtime=solution[file.id], rounds=solution[f"{file.id}/rounds"])


def table(data: Path) -> pl.DataFrame:
    """One row a layout graph: collection, split, name, configs, tau (two halves), spread."""
    path = data / "solution.npz"
    solution = dict(np.load(path, allow_pickle=False)) if path.exists() else {}
    rows = []
    for file in index(data):
        if file.tile:
            continue
        graph = measured(file, solution)
        if graph.labelled:
            spread = graph.runtime.max() / graph.runtime.min()
            rows.append((file.collection, file.split, file.name, graph.configs,
                         repeatability(graph), float(spread)))
    names = ["collection", "split", "name", "configs", "tau", "spread"]
    return pl.DataFrame(rows, schema=names, orient="row")


def main(argv: list[str] | None = None) -> int:
    """Command line; 1 when the folder can't be read."""
    parser = argparse.ArgumentParser(
        "python -m utils.repeatability", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "data", nargs="?", default=ROOT / "data/sample", metavar="DIR",
        help="folder of graph files (default: data/sample)",
    )  # fmt: skip
    data = parser.parse_args(argv).data
    try:
        graphs = table(find_data(data, ROOT))
    except DataError as error:
        return fail(error)
    if graphs.is_empty():
        return fail(f"{data}: no layout graph with runtimes")
    for row in graphs.sort("collection", "split", "tau").iter_rows(named=True):
        print("{collection:22} {split:6} {name:34} {configs:5} configurations  "
              "tau {tau:5.3f}  slowest/fastest {spread:5.2f}".format(**row))
    print()
    summary = graphs.group_by("collection", "split").agg(
        pl.len().alias("graphs"), pl.col("configs").min(), pl.col("tau").median(),
        pl.col("tau").min().alias("lowest"), pl.col("spread").median(),
    )
    for row in summary.sort("collection", "split").iter_rows(named=True):
        print("{collection:22} {split:6} {graphs:3} graphs of at least {configs} configurations: "
              "tau {tau:.3f} median, {lowest:.3f} lowest; median spread {spread:.2f}".format(**row))
    print(f"all {len(graphs)} graphs: median tau {graphs['tau'].median():.3f}")
    search = graphs.filter(pl.col("collection").str.ends_with(":random"))
    if len(search):
        print(f"{len(search)} graphs of random searches: median slowest/fastest "
              f"{search['spread'].median():.2f}")
    return 0


if __name__ == "__main__":
    run_command(main)
