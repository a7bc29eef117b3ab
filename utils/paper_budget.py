"""What the whole release takes, on paper: ``python -m utils.paper_budget``.

The release has 639 layout graphs that expand to 400 GB and 7,229 tile kernels. Files of its shape,
of several sizes, are generated, and every step of notebooks 01 to 06 is measured on each. What a
step takes grows with the nodes, the configurations and the codes (configurations x configurable
nodes) of a graph: seconds and bytes on disk are fitted to that, nothing negative. A sum over graphs
then needs the totals of the release alone. Memory is that of the largest graph: see
`utils.benchmark_read`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from scipy.optimize import nnls

from utils import cost_graphs, cost_study, eda, feature_tables, ranking, stat_tables, synthetic
from utils import vector_tables
from utils.benchmark_read import write_large
from utils.command import at_least, folder_path, run_command
from utils.cost import measured
from utils.dataset import GraphFile
from utils.graph_cache import cached_graph
from utils.notebook import Run, open_run, table_path
from utils.options import ROOT
from utils.progress import progress
from utils.schema import TILE_COLLECTION
from utils.study import Fit
from utils.training import features_of, fit_ranker, read_features

# (graphs, of these labelled; means of nodes and of configurations), from the release's own pages.
RELEASE = {
    "layout:xla:default": (76, 68, 13_900, 10_100),
    "layout:xla:random": (84, 76, 13_900, 11_600),
    "layout:nlp:default": (235, 218, 5_700, 56_000),
    "layout:nlp:random": (244, 227, 5_700, 66_000),
    TILE_COLLECTION: (7_229, 6_385, 40, 1_842),
}
EXPANDED = 400e9  # bytes of float32 [configurations, configurable nodes, 18] in train and valid
LARGEST = (43_615, 100_040, 36_000_000)  # nodes, configurations, codes (2.6 GB expanded)
# Graphs to measure: nodes, configurations, configurable nodes.
SIZES = (
    (700, 500, 60), (700, 20_000, 60), (5_700, 500, 200), (5_700, 10_000, 200),
    (13_900, 500, 400), (13_900, 8_000, 400),
)  # fmt: skip
KERNELS = (300, 1_842)  # configurations of tile kernels to measure
MAX_CONFIGS = 2000  # of a graph that are trained on, as in notebooks 05 and 06
FITS = 2  # of a model in a quick run: on train, and on all but one fold
MADE = "layout:nlp:random"  # the collection of the generated layout graphs
CORES, MACHINES, EACH = (2, 4, 16), (10, 100), 4  # columns; cores of a machine


def totals() -> dict[str, np.ndarray]:
    """Of each collection float64 [4]: graphs, nodes, configurations, codes; tile has no codes."""
    layouts = [name for name in RELEASE if name != TILE_COLLECTION]
    known = sum(RELEASE[name][1] * RELEASE[name][3] for name in layouts)
    width = EXPANDED / (18 * 4) / known  # configurable nodes, mean over configurations
    sizes = {}
    for name, (graphs, _, nodes, configs) in RELEASE.items():
        codes = 0 if name == TILE_COLLECTION else graphs * configs * width
        sizes[name] = np.array([graphs, graphs * nodes, graphs * configs, codes], float)
    return sizes


def growth(sizes: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """float64 [4], what each graph, node, configuration and code adds: `seen` float64 [g] of
    graphs with `sizes` float64 [g, 4]. Relative errors count, nothing is negative."""
    weight = 1 / np.maximum(seen, 1e-9)
    scale = np.maximum(sizes.max(0), 1.0)
    return nnls(sizes / scale * weight[:, None], seen * weight)[0] / scale


def write_files(folder: Path, sizes=SIZES, kernels=KERNELS) -> Path:
    """Generated graphs, twice each of another family; returns the folder."""
    for i, (nodes, configs, width) in enumerate(sizes):
        for twin, family in enumerate(("bert", "resnet")):
            place = folder / "layout" / "nlp" / "random" / "train" / f"{family}.{i}.npz"
            place.parent.mkdir(parents=True, exist_ok=True)
            write_large(place, configs, width, nodes, seed=2 * i + twin)
    for configs in kernels:
        part = folder / f"of_{configs}"
        only = (TILE_COLLECTION,)
        synthetic.write_data(part, 0, {"train": 4}, configs, rounds=0, collections=only)
        for path in sorted((part / "tile" / "xla" / "train").glob("*.npz")):
            place = folder / "tile" / "xla" / "train" / f"{path.stem}_{configs}.npz"
            place.parent.mkdir(parents=True, exist_ok=True)
            path.rename(place)
    return folder


def size_of(run: Run, file: GraphFile) -> list[float]:
    """[1, nodes, configurations, codes] of a graph."""
    graph = cached_graph(run, file)
    codes = 0 if graph.codes is None else graph.codes.size
    return [1, len(graph.opcode), graph.configs, codes]


def each_step(run: Run, file: GraphFile, reducer) -> Iterator[tuple[str, Callable]]:
    """The steps of notebooks 01 to 04 and 06 for one graph: names and work, in order."""
    yield "01: reading, description", lambda: eda.write_description(run, file, 0)
    yield "02: graph statistics", lambda: stat_tables.write_graph_statistics(run, file)
    yield "03: message passing", lambda: vector_tables.write_graph_vectors(run, file, reducer)

    def features() -> None:
        told = [
            pl.read_parquet(table_path(run, kind, file)).drop("collection", "split", "name")
            for kind in ("graph_stats", "message_passing")
        ]
        feature_tables.write_graph_features(run, file, *(table.row(0, named=True) for table in told))

    yield "04: features", features
    if not file.tile:
        yield "06: rows", lambda: cost_graphs.described(cached_graph(run, file))


def measure_steps(run: Run) -> dict[str, dict[str, np.ndarray]]:
    """{step: {"layout" or "tile": seconds of each graph, float64 [g]}}, and "size" in place of a
    step: float64 [g, 4], see `size_of`."""
    reducer = vector_tables.get_reducer(run, 16, 0)
    seen: dict[str, dict[str, list]] = {}
    for file in progress(run.files, desc="measure", unit="graph"):
        kind = "tile" if file.tile else "layout"
        for name, work in each_step(run, file, reducer):
            with measured() as cost:
                work()
            seen.setdefault(name, {}).setdefault(kind, []).append(cost.seconds)
        seen.setdefault("size", {}).setdefault(kind, []).append(size_of(run, file))
    return {name: {k: np.array(v, float) for k, v in of.items()} for name, of in seen.items()}


def measure_training(run: Run, threads: int) -> dict[str, float]:
    """Seconds: of all rankers for a row that is trained on, of cost tables for a graph, and of one
    ranker for a configuration that is scored."""
    files = tuple(file for file in run.files if not file.tile)
    rows = sum(min(MAX_CONFIGS, len(read_features(run, file))) for file in files)
    with measured() as rankers:
        fits = [Fit(MADE, model, 0, 0, None, files, {}) for model in ranking.TRAINED]
        fitted = {fit.model: fit_ranker(run, fit, MAX_CONFIGS, threads) for fit in fits}
    ready = [cost_graphs.described(cached_graph(run, file)) for file in files]
    ready = [cost_graphs.sample(graph, MAX_CONFIGS) for graph in ready]
    with measured() as tables:
        cost_study.fit_variant(cost_study.FULL, ready, 1.0, 0, threads)
    with measured() as scored:
        values, names = features_of(read_features(run, max(files, key=lambda file: file.size)))
        ranking.predict(fitted["rank_pairwise"], values, names, threads)
    each = {"row": rankers.seconds / rows, "graph": tables.seconds / len(files)}
    return each | {"score": scored.seconds / len(values)}


@dataclass(frozen=True)
class Step:
    """Seconds on one core: for all graphs, for the largest one."""

    name: str
    seconds: float
    largest_s: float


def on_paper(seen: dict[str, dict[str, np.ndarray]]) -> list[Step]:
    """The steps that are done graph by graph, for the whole release, from `measure_steps`."""
    whole = totals()
    layout = sum(size for name, size in whole.items() if name != TILE_COLLECTION)
    largest, steps = np.array([1, *LARGEST], float), []
    for name, of in seen.items():
        if name == "size":
            continue
        law = growth(seen["size"]["layout"], of["layout"])
        total = float(law @ layout)
        if "tile" in of:
            total += float(growth(seen["size"]["tile"], of["tile"]) @ whole[TILE_COLLECTION])
        steps.append(Step(name, total, float(law @ largest)))
    return steps


def training_seconds(each: dict[str, float]) -> tuple[float, float]:
    """(training, scoring) of a quick run on the whole release, from `measure_training`."""
    rows = sum(known * min(MAX_CONFIGS, configs) for _, known, _, configs in RELEASE.values())
    known = sum(row[1] for name, row in RELEASE.items() if name != TILE_COLLECTION)
    configs = sum(size[2] for size in totals().values())
    training = FITS * (rows * each["row"] + known * each["graph"])
    return training, FITS * (len(ranking.TRAINED) + 1) * configs * each["score"]


def table(steps: Sequence[Step], training: float, scoring: float) -> list[str]:
    """Hours by number of cores, as Markdown. Workers, one a core, share the graphs in notebooks 01
    to 04; none is done before its largest graph. The rest is not shared."""
    names = [f"{cores} cores" for cores in CORES]
    names += [f"{machines} machines of {EACH} cores" for machines in MACHINES]
    workers = [*CORES, *(machines * EACH for machines in MACHINES)]
    lines = ["| hours | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    taken = [s.seconds / np.where(s.name < "05", workers, 1) for s in steps]
    shared = [np.maximum(s, step.largest_s) / 3600 for s, step in zip(taken, steps)]
    for step, hours in zip(steps, shared):
        lines.append(f"| {step.name} | " + " | ".join(f"{h:.2f}" for h in hours) + " |")
    rest = {"05, 06: training": training / 3600, "05, 06: scores": scoring / 3600}
    for name, hours in rest.items():
        lines.append(f"| {name} | " + " | ".join([f"{hours:.2f}"] * len(workers)) + " |")
    sums = [sum(row[i] for row in shared) + sum(rest.values()) for i in range(len(workers))]
    lines.append("| **all** | " + " | ".join(f"**{h:.1f}**" for h in sums) + " |")
    return lines


def bytes_of(run: Run, folder: str) -> np.ndarray:
    """float64 [g]: bytes that each layout graph leaves in a folder of the run."""
    names = [file.name for file in run.files if not file.tile]
    found = [path for path in (run.out / folder).rglob("*") if path.is_file()]
    return np.array([sum(p.stat().st_size for p in found if p.stem == n) for n in names], float)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m utils.paper_budget", description="What the whole release takes, on paper."
    )
    parser.add_argument("--threads", type=at_least(1), default=2, help="of training (default 2)")
    parser.add_argument("--keep", metavar="DIR", type=folder_path,
                        help="leave files and tables here; files that are there are used again")
    chosen = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (chosen.keep or Path(scratch)).resolve()
        if not (folder / "data").exists():
            write_files(folder / "writing").rename(folder / "data")
        out = Path(tempfile.mkdtemp(dir=folder))
        run = open_run(ROOT, str(folder / "data"), str(out))
        seen = measure_steps(run)
        training, scoring = training_seconds(measure_training(run, chosen.threads))
        steps = on_paper(seen)
        print(*table(steps, training, scoring), sep="\n")
        layout = sum(size for name, size in totals().items() if name != TILE_COLLECTION)
        for what, place in (("coded graphs (cache)", "cache"), ("tables", "tables")):
            size = growth(seen["size"]["layout"], bytes_of(run, place)) @ layout
            print(f"{what}: {size / 1e9:,.0f} GB on disk for the layout graphs")
        print(f"the largest graph: {sum(step.largest_s for step in steps):,.0f} s in all steps")
    return 0


if __name__ == "__main__":
    run_command(main)
