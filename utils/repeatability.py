"""Print how well each measured graph repeats: is there something to rank?

    python -m utils.repeatability [DIR]     (default: data/sample)

For every layout graph the Kendall's tau between two halves of its rounds, and how much slower its
slowest configuration is than its fastest; then medians per collection. Test files are unlabelled,
so theirs come from DIR/solution.npz.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from utils.ceiling import repeatability
from utils.dataset import DataError, GraphFile, find_data, index, read_graph


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


def main(argv: list[str]) -> int:
    """Command line; 1 when the folder can't be read."""
    if argv and argv[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    root = Path(__file__).resolve().parents[1]
    try:
        graphs = table(find_data(argv[0] if argv else str(root / "data/sample"), root))
    except DataError as error:
        print(error, file=sys.stderr)
        return 1
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
    sys.exit(main(sys.argv[1:]))
