"""Speed and memory of every model on the same generated graphs, each model in its own process.

    .venv/bin/python -m utils.benchmark --out outputs/sample --sizes 2000x10000

`from memory`: the graph is coded and prepared (statistics, row tables or network inputs are there)
and only what depends on configurations is timed. `from a file`: reading, coding, preparing and
scoring. Rounds go from model to model, so that a slow moment of the machine meets all; speeds are
medians over rounds and ratios are medians of the ratios inside each round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import polars as pl

from utils.benchmark_graphs import write_graph
from utils.command import at_least, fail, run_command
from utils.dataset import DataError, GraphFile
from utils.files import write_parquet
from utils.npz import open_npz, read_headers
from utils.progress import progress
from utils.schema import LAYOUT_COLLECTIONS

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("byte_count", "cost_tables", "rank_pairwise", "gnn", "gnn/extra")
BASE = "gnn"
NETWORKS = ("gnn/extra", BASE)  # ratios are to the first that is there
QUICK = ((2_000, 2_000),)  # nodes, configurations
SIZES = ((1_000, 100_040), (2_000, 10_000), (5_700, 10_000), (13_900, 4_000), (43_615, 1_000))
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
TABLE = Path("tables") / "benchmark.parquet"


def saved_models(out: Path, collection: str, models: Sequence[str] = MODELS) -> dict[str, Path]:
    """Stems of the models that a run has saved for a collection; the floor needs none."""
    folder = Path(out) / "models" / collection.replace(":", "_")
    stems = {model: folder / model.replace("/", "__") for model in models}
    return {
        model: stem for model, stem in stems.items() if model == "byte_count" or _size_mb(stem) > 0
    }


def _size_mb(stem: Path) -> float:
    files = [stem.with_name(stem.name + end) for end in (".ubj", ".npz", ".json")]
    return sum(file.stat().st_size for file in files if file.exists()) / 2**20


class Process:
    """A `utils.benchmark_worker` and what it answers."""

    def __init__(self, model: str, stem: Path, out: Path, file: GraphFile, **settings) -> None:
        given = {"model": model, "stem": stem.resolve(), "path": file.path.resolve()}
        given |= {"collection": file.collection, "name": file.name}
        given["reducer"] = (Path(out) / "models" / "message_passing.npz").resolve()
        words = [f"--{name}={value}" for name, value in (given | settings).items()]
        limits = dict.fromkeys(THREAD_VARIABLES, str(settings["threads"]))
        self.model = model
        self.process = subprocess.Popen(
            [sys.executable, "-m", "utils.benchmark_worker", *words], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | limits | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.imports_mb = self._reply()["imports_mb"]

    def ask(self, what: str) -> dict:
        """Send a request and wait for its answer. Raises DataError when the process has ended."""
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self._reply()

    def _reply(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise DataError(f"{self.model}: its process ended with {self.process.returncode}")
        return json.loads(line)

    def close(self) -> None:
        """End the process, whatever it is at."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextmanager
def _started(*arguments, **settings):
    process = Process(*arguments, **settings)
    try:
        yield process
    finally:
        process.close()


def measure(
    file: GraphFile, stems: dict[str, Path], out: Path, threads: int = 2, repeats: int = 5,
    seconds: float = 4.0,
) -> list[dict]:
    """One row a model: what scoring one generated file takes.

    The network scores as many configurations as take about `seconds`, with its fastest batch
    size; the others score all. Columns of a row: model, threads, nodes, configs, config_nodes,
    scored, batch (null but for networks), memory_s and file_s (seconds for all configurations, one
    list entry a round), read_s, peak_mb (of the first pass over the file, above imports_mb),
    imports_mb (resident with imports and model loaded), disk_mb.
    """
    settings = {"threads": threads, "seconds": seconds}
    about = _shape(file) | {"threads": threads}
    batches = {}
    for model, stem in stems.items():
        if model.startswith("gnn"):
            with _started(model, stem, out, file, batch=0, **settings) as process:
                batches[model] = process.ask("batch")["batch"]
    rows = {model: {"model": model} | about | {"batch": batches.get(model)} for model in stems}
    with ExitStack() as stack:
        workers = {
            model: stack.enter_context(
                _started(model, stem, out, file, batch=batches.get(model, 0), **settings)
            )
            for model, stem in stems.items()
        }
        for model, worker in workers.items():  # the first pass tells the memory, and warms up
            first = worker.ask("file")
            peak, start = first["peak_mb"], worker.imports_mb
            rows[model] |= {
                "scored": first["scored"], "disk_mb": _size_mb(stems[model]),
                "imports_mb": start, "peak_mb": None if peak is None else peak - start,
                "memory_s": [], "file_s": [], "read_s": [],
            }  # fmt: skip
        for _ in range(repeats):
            for model, worker in workers.items():
                reply = worker.ask("file")
                share = reply["configs"] / reply["scored"]
                before = reply["read_s"] + reply["prepare_s"]
                rows[model]["file_s"].append(before + share * reply["score_s"])
                rows[model]["read_s"].append(reply["read_s"])
        for worker in workers.values():
            worker.ask("memory")  # reads the graph and keeps it
        for _ in range(repeats):
            for model, worker in workers.items():
                reply = worker.ask("memory")
                share = about["configs"] / reply["scored"]
                rows[model]["memory_s"].append(share * reply["score_s"])
    return list(rows.values())


def _shape(file: GraphFile) -> dict[str, int]:
    with open_npz(file.path) as archive:
        headers = read_headers(file.path, archive)
    configs, config_nodes, _ = headers["node_config_feat"].shape
    nodes = headers["node_opcode"].shape[0]
    return {"nodes": nodes, "config_nodes": config_nodes, "configs": configs}


def run(
    out: Path, collection: str, sizes: Iterable[tuple[int, int]] = QUICK, threads: int = 2,
    repeats: int = 5, seconds: float = 4.0, seed: int = 0, models: Sequence[str] = MODELS,
) -> pl.DataFrame:
    """Measure the saved models of a collection on generated graphs; writes and returns the table.

    Raises DataError where the run has saved no model.
    """
    stems = saved_models(out, collection, models)
    if set(stems) <= {"byte_count"}:
        raise DataError(f"{out}: no saved model of {collection}: run notebooks 05 to 07 first")
    rows = []
    for nodes, configs in progress(list(sizes), desc="benchmark", unit="graph"):
        with tempfile.TemporaryDirectory() as folder:
            file = write_graph(Path(folder), nodes, configs, seed=seed)
            rows += measure(file, stems, out, threads, repeats, seconds)
    table = pl.DataFrame(rows, infer_schema_length=None).with_columns(
        (pl.col("configs") / pl.col("memory_s").list.median()).alias("memory_per_s"),
        (pl.col("configs") / pl.col("file_s").list.median()).alias("file_per_s"),
    )
    write_parquet(Path(out) / TABLE, table)
    return table


def ratios(table: pl.DataFrame, base: str | None = None) -> pl.DataFrame:
    """Each model over `base` on each graph: how many times as fast, and the share of its memory.

    Columns: nodes, configs, model, base, from_memory, from_file (medians over rounds of the
    base's seconds over the model's), memory (null where unknown). Empty without the base.
    """
    base = base or next((m for m in NETWORKS if m in set(table["model"])), "")
    rows = []
    for key, part in table.group_by("nodes", "configs", maintain_order=True):
        by_model = {row["model"]: row for row in part.to_dicts()}
        for model, row in by_model.items():
            if base in by_model and model != base:
                theirs = by_model[base]
                pairs = [np.divide(theirs[c], row[c]) for c in ("memory_s", "file_s")]
                known = row["peak_mb"] is not None and theirs["peak_mb"]
                found = (*key, model, base, *(float(np.median(pair)) for pair in pairs))
                rows.append((*found, row["peak_mb"] / theirs["peak_mb"] if known else None))
    names = ("nodes", "configs", "model", "base", "from_memory", "from_file", "memory")
    kinds = (pl.Int64, pl.Int64, pl.String, pl.String, pl.Float64, pl.Float64, pl.Float64)
    return pl.DataFrame(rows, dict(zip(names, kinds)), orient="row")


def sentences(table: pl.DataFrame, base: str | None = None) -> list[str]:
    """The ratios in words, one line a graph and model."""
    said = []
    for row in ratios(table, base).to_dicts():
        line = "{nodes:,} nodes, {configs:,} configurations: {model} scores {from_memory:,.1f}"
        line += " times as many a second as {base} from memory, {from_file:,.1f} times from a file"
        line += ", with {memory:.2f} of its memory" if row["memory"] is not None else ""
        said.append(line.format(**row))
    return said or ["no graph network was saved, so there is nothing to compare with"]


def markdown(table: pl.DataFrame) -> str:
    """The table and the ratios for a report."""
    head = "| nodes | configurations | model | configurations/s from memory | from a file | "
    lines = [head + "peak memory, MB | on disk, MB | batch |", "|---:|---:|---|" + "---:|" * 5]
    for row in table.to_dicts():
        peak = "" if row["peak_mb"] is None else f"{row['peak_mb']:,.0f}"
        cells = [f"{row['nodes']:,}", f"{row['configs']:,}", f"`{row['model']}`"]
        cells += [f"{row['memory_per_s']:,.0f}", f"{row['file_per_s']:,.0f}", peak]
        cells += [f"{row['disk_mb']:.1f}", str(row["batch"] or "")]
        lines.append("| " + " | ".join(cells) + " |")
    threads = ", ".join(str(t) for t in sorted(set(table["threads"])))
    said = f"Generated graphs, {threads} threads, medians over rounds; memory is that of scoring "
    said += "one file, above imports and model. `batch`: the network's fastest batch size."
    return "\n".join([said, "", *lines, "", *(f"- {line}" for line in sentences(table))])


def parse_sizes(text: str) -> list[tuple[int, int]]:
    """'2000x10000,43615x1000' -> [(2000, 10000), (43615, 1000)]. Raises ValueError."""
    sizes = [tuple(map(int, part.split("x"))) for part in text.split(",") if part.strip()]
    if not sizes or any(len(size) != 2 or min(size) < 2 for size in sizes):
        raise ValueError(f"'{text}': sizes are NODESxCONFIGURATIONS, separated by commas")
    return sizes


def _sizes(text: str) -> list[tuple[int, int]]:
    try:
        return parse_sizes(text)
    except ValueError:
        what = "is not NODESxCONFIGURATIONS, separated by commas"
        raise argparse.ArgumentTypeError(f"{text!r} {what}") from None


def main(argv: list[str] | None = None) -> int:
    """The command line; prints the table and the ratios."""
    about = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser("python -m utils.benchmark", description=about)
    add = parser.add_argument
    add("--out", default="outputs/sample", help="a run with saved models")
    add("--collection", default="layout:nlp:random", choices=LAYOUT_COLLECTIONS,
        metavar="C", help="whose models")  # fmt: skip
    add("--sizes", type=_sizes, default=SIZES, help="NODESxCONFIGURATIONS, by commas")
    add("--threads", type=at_least(1), default=2)
    add("--repeats", type=at_least(1), default=5, help="rounds; medians are taken")
    add("--seconds", type=float, default=4.0, help="that the network may take for one pass")
    given = parser.parse_args(argv)
    try:
        table = run(
            Path(given.out), given.collection, given.sizes, given.threads, given.repeats,
            given.seconds,
        )  # fmt: skip
    except DataError as error:
        return fail(error)
    with pl.Config(tbl_rows=100, tbl_cols=20, tbl_hide_dataframe_shape=True, tbl_width_chars=150):
        print(table.drop("memory_s", "file_s", "read_s"))
    print(*sentences(table), sep="\n")
    return 0


if __name__ == "__main__":
    run_command(main)
