"""One model in a process of its own: `utils.benchmark` tells it what to do, line by line.

Imports come first and only those that the model needs, so that the memory of scoring can be told
from theirs.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from utils.coding import Graph, read_graph
from utils.dataset import GraphFile

TRIED = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # batch sizes of the network
MOST_NUMBERS = 1 << 26  # float32 [n, b, h] of the largest batch that is tried: 256 MB


@dataclass(frozen=True)
class Scorer:
    """`prepare`: a coded graph -> all that doesn't depend on configurations; `score`: that and a
    number of configurations (None: all) -> float64 [configurations]."""

    prepare: Callable
    score: Callable
    most: bool = False  # can it score only some of the configurations?


def make_scorer(model: str, stem: Path, reducer: Path, threads: int, batch: int) -> Scorer:
    """The scorer of a model that was saved as `stem`. Imports what it needs."""
    if model == "byte_count":
        from utils.layout_rows import byte_count

        return Scorer(lambda graph: graph, lambda graph, most: byte_count(graph))
    if model == "cost_tables":
        return _cost_tables(stem, threads)
    if model == "rank_pairwise":
        return _rank_pairwise(stem, reducer, threads)
    if model.partition("/")[0] == "gnn":
        return _gnn(stem, threads, batch)
    raise ValueError(f"no model '{model}' to measure")


def _cost_tables(stem: Path, threads: int) -> Scorer:
    from utils import cost_tables
    from utils.cost_rows import cost_rows, without

    model = cost_tables.load_model(stem)

    def prepare(graph: Graph):
        return graph, without(cost_rows(graph), prefixes=("mp_",))

    def score(ready, most):
        return cost_tables.predict(model, *ready, threads)

    return Scorer(prepare, score)


def _rank_pairwise(stem: Path, reducer: Path, threads: int) -> Scorer:
    """Its features include the statistics (02) and the message passing (03) of the graph."""
    import numpy as np

    from utils import message_passing, ranking
    from utils.graph_stats import graph_statistics
    from utils.layout_features import layout_features
    from utils.vector_tables import pool

    ranker = ranking.load_model(stem)
    reduce = message_passing.load_reducer(reducer)

    def prepare(graph: Graph):
        vectors = message_passing.node_vectors(graph, reduce)
        return graph, graph_statistics(graph), vectors, pool(graph, vectors)

    def score(ready, most):
        graph, statistics, vectors, pooled = ready
        table = layout_features(graph, None, statistics, vectors, pooled)
        values = table.select(ranker.columns).to_numpy().astype(np.float32)
        return ranking.predict(ranker, values, ranker.columns, threads)

    return Scorer(prepare, score)


def _gnn(stem: Path, threads: int, batch: int) -> Scorer:
    import torch

    from utils import gnn
    from utils.gnn_graphs import describe

    torch.set_num_threads(threads)
    trained = gnn.load_model(stem)

    def prepare(graph: Graph):
        return describe(graph, trained.settings.extra, trained.settings.layers)

    return Scorer(prepare, lambda ready, most: gnn.predict(trained, ready, batch, most=most), True)


def timed(work: Callable) -> tuple[float, object]:
    """Seconds and result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


class Worker:
    """Answers requests about one model and one file."""

    def __init__(self, scorer: Scorer, file: GraphFile, seconds: float) -> None:
        self.scorer, self.file, self.seconds = scorer, file, seconds
        self.ready = self.most = None

    def file_pass(self) -> dict:
        """From the file to scores; nothing is kept."""
        read, graph = timed(lambda: read_graph(self.file))
        prepare, ready = timed(lambda: self.scorer.prepare(graph))
        if self.scorer.most and self.most is None:
            self.most = self._enough(ready, graph.configs)
        score, found = timed(lambda: self.scorer.score(ready, self.most))
        return {
            "read_s": read, "prepare_s": prepare, "score_s": score, "scored": len(found),
            "configs": graph.configs, "peak_mb": memory_mb("VmHWM"),
        }  # fmt: skip

    def memory_pass(self) -> dict:
        """From the coded graph, already prepared, to scores."""
        if self.ready is None:
            self.ready = self.scorer.prepare(read_graph(self.file))
        seconds, found = timed(lambda: self.scorer.score(self.ready, self.most))
        return {"score_s": seconds, "scored": len(found)}

    def _enough(self, ready, configs: int) -> int:
        """So many configurations as take about `seconds`."""
        count = 1
        while True:
            seconds, found = timed(lambda: self.scorer.score(ready, count))
            if seconds > self.seconds / 4 or count >= configs:
                return min(configs, max(1, round(len(found) * self.seconds / seconds)))
            count *= 4


def best_batch(stem: Path, file: GraphFile, threads: int) -> dict:
    """Configurations a second of the network for each batch size in TRIED that fits."""
    import torch

    from utils import gnn
    from utils.gnn_graphs import describe

    torch.set_num_threads(threads)
    trained = gnn.load_model(stem)
    graph = describe(read_graph(file), trained.settings.extra, trained.settings.layers)
    numbers = len(graph.opcode) * trained.settings.hidden
    speeds = {}
    for batch in TRIED:
        if batch > 1 and (batch > graph.configs or batch * numbers > MOST_NUMBERS):
            break
        once = [timed(lambda: gnn.predict(trained, graph, batch, most=batch))[0] for _ in range(3)]
        speeds[batch] = batch / min(once)
    return {"batch": max(speeds, key=speeds.get), "speeds": speeds}


def memory_mb(field: str) -> float | None:
    """VmRSS or VmHWM (the peak so far) of this process in MB; None where there is no /proc."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return int(text.split(f"{field}:")[1].split()[0]) / 1024


def main() -> None:
    """Say what the imports took, then answer a line of standard input at a time."""
    parser = ArgumentParser()
    for name in ("model", "stem", "reducer", "collection", "name", "path"):
        parser.add_argument(f"--{name}", required=True)
    for name, kind in (("threads", int), ("batch", int), ("seconds", float)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    given = parser.parse_args()
    file = GraphFile(given.collection, "test", given.name, Path(given.path), ours=True)
    stem = Path(given.stem)
    scorer = make_scorer(given.model, stem, Path(given.reducer), given.threads, given.batch)
    worker = Worker(scorer, file, given.seconds)
    answer({"imports_mb": memory_mb("VmRSS")})
    for line in sys.stdin:
        request = line.strip()
        if request == "batch":
            answer(best_batch(stem, file, given.threads))
        else:
            answer({"file": worker.file_pass, "memory": worker.memory_pass}[request]())


def answer(reply: dict) -> None:
    print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
