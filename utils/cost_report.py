"""What notebook 06 shows of the cost tables: comparisons, where costs come from, speed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from utils import cost_tables, ranking
from utils.coding import Graph
from utils.cost_rows import KINDS, SLOT, cost_rows, score_rows, terms, without
from utils.cost_study import MODEL, VARIANTS, Prepared, fit_variant, prepare, score
from utils.cost_tables import LOG, CostTables, row_values
from utils.dataset import GraphFile
from utils.files import save_npz
from utils.layout_features import layout_features
from utils.layout_rows import describe_slots
from utils.metrics import kendall_tau
from utils.notebook import Run
from utils.schema import OPCODES, SLOTS
from utils.synthetic import layout_graph
from utils.tensors import node_dimensions

GRAPH = ["collection", "split", "name"]
HALVES = 4000  # configurations of a graph that `halves` looks at, at most


def overall(scores: pl.DataFrame, files: Iterable[GraphFile], base: str = MODEL) -> pl.DataFrame:
    """Every model on all layout graphs that `base` has scores of, paired by family.

    scores: from `evaluate.graph_scores`, with a ceiling column. Seeds and fold assignments are
    averaged first. Columns: model, graphs, tau (mean over graphs), of_ceiling (mean tau over mean
    ceiling), difference (base less model, mean over families), error (standard error of it).
    """
    family = {(f.collection, f.split, f.name): f.family or f.name for f in files}
    means = (
        scores.filter(pl.col("rankable") & pl.col("collection").str.starts_with("layout"))
        .group_by(*GRAPH, "model")
        .agg(pl.col("tau").mean(), pl.col("ceiling").mean())
    )
    own = means.filter(pl.col("model") == base).select(*GRAPH, pl.col("tau").alias("base"))
    both = means.join(own, on=GRAPH)
    names = [family.get(key, key[2]) for key in both.select(GRAPH).rows()]
    both = both.with_columns(
        pl.Series("family", names, pl.String), (pl.col("base") - pl.col("tau")).alias("gain")
    )
    families = both.group_by("model", "family").agg(pl.col("gain").mean())
    paired = families.group_by("model").agg(
        pl.col("gain").mean().alias("difference"),
        (pl.col("gain").std() / pl.len().sqrt()).alias("error"),
        pl.len().alias("families"),
    )
    mean = both.group_by("model").agg(
        pl.len().alias("graphs"), pl.col("tau").mean(),
        (pl.col("tau").mean() / pl.col("ceiling").mean()).alias("of_ceiling"),
    )
    return mean.join(paired, on="model").sort("tau", "model", descending=[True, False])


def sentences(protocol: str, table: pl.DataFrame, base: str = MODEL) -> list[str]:
    """What `overall` says of the byte count, the per-configuration ranker and the ceiling."""
    lines = {row["model"]: row for row in table.to_dicts()}
    if base not in lines:
        return [f"{protocol}: nothing to compare"]
    said = []
    for model in ("byte_count", "rank_pairwise"):
        gain, error = (lines.get(model, {}).get(key) for key in ("difference", "error"))
        if gain is None:
            continue
        where = "ahead of" if gain > 0 else "behind"
        sure = error is not None and abs(gain) > 2 * error
        doubt = "" if sure else "; two standard errors do not separate that from nothing"
        shown = "unknown" if error is None else f"{error:.3f}"
        said.append(f"{protocol}: {base} is {abs(gain):.3f} ± {shown} {where} {model}{doubt}")
    if (share := lines[base]["of_ceiling"]) is not None:
        said.append(f"{protocol}: {base} reaches {share:.2f} of the noise ceiling")
    return said


def saved_models(run: Run) -> dict[str, CostTables]:
    """The models that the study saved, by collection."""
    stems = {c: run.out / "models" / c.replace(":", "_") / MODEL for c in run.collections}
    there = {c: stem for c, stem in stems.items() if stem.with_name(stem.name + ".ubj").exists()}
    return {c: cost_tables.load_model(stem) for c, stem in there.items()}


def gammas(run: Run, model: str = MODEL) -> pl.DataFrame:
    """How often each gamma was taken: collection, gamma, fits."""
    rows = []
    for collection in run.collections:
        folder = run.out / "tables" / "predictions" / collection.replace(":", "_")
        for path in sorted((folder / model).glob("*.json")):
            costs = json.loads(path.read_text(encoding="utf-8"))
            if "gamma" in costs and not path.stem.startswith("test"):
                rows.append((collection, float(costs["gamma"])))
    table = pl.DataFrame(rows, {"collection": pl.String, "gamma": pl.Float64}, orient="row")
    return table.group_by("collection", "gamma").agg(pl.len().alias("fits")).sort(pl.all())


def kind_shares(model: CostTables, graphs: Sequence[Prepared]) -> dict[str, float]:
    """Share of the scores' variance that each kind of row brings in, mean over graphs; sums to 1.

    The share of a part is its covariance with the whole over the variance of the whole.
    """
    shares = []
    for graph in graphs:
        rows = _as_trained(graph)
        value = row_values(model, rows)
        parts = np.array([
            score_rows(graph.graph, rows, value * (rows.kind == k)) for k in range(len(KINDS))
        ])  # fmt: skip
        parts -= parts.mean(1, keepdims=True)
        whole = parts.sum(0)
        if whole.any():
            shares.append(parts @ whole / (whole @ whole))
    mean = np.mean(shares, axis=0) if shares else np.zeros(len(KINDS))
    return dict(zip(KINDS, mean.tolist()))


def layout_costs(model: CostTables, graph: Prepared, top: int = 8) -> pl.DataFrame:
    """The slots whose layout matters most: what the costliest layout adds to the cheapest."""
    slots = describe_slots(graph.graph)
    rows = _as_trained(graph)
    value = row_values(model, rows)[rows.kind == SLOT]
    dims = node_dimensions(graph.graph)[np.maximum(slots.tensor, 0)].astype(int)
    found = []
    for first, last in zip(slots.start[:-1], slots.start[1:]):
        if last - first > 1:
            costs = value[first:last]
            dear, cheap = first + costs.argmax(), first + costs.argmin()
            node = graph.graph.config_nodes[slots.node[first]]
            found.append({
                "node": int(node), "operation": OPCODES[graph.graph.opcode[node]],
                "slot": SLOTS[slots.slot[first]],
                "shape": "x".join(str(d) for d in dims[first][: slots.rank[first]]),
                "cheapest": _words(slots.layout[cheap]), "costliest": _words(slots.layout[dear]),
                "adds": float(costs.max() - costs.min()),
            })  # fmt: skip
    return pl.DataFrame(found).sort("adds", descending=True).head(top)


def _words(layout: np.ndarray) -> str:
    named = layout[layout >= 0]
    return "{" + ",".join(map(str, named)) + "}" if len(named) else "compiler's choice"


def _as_trained(graph: Prepared):
    return without(graph.rows, VARIANTS[""].kinds, VARIANTS[""].prefixes)


def large_graph(folder: Path, configs: int = 100_040, nodes: int = 300, seed: int = 0) -> Prepared:
    """A generated program of about `nodes` configurable nodes with `configs` random codes."""
    arrays, _ = layout_graph(seed, "nlp", "random", layers=round(nodes * 0.6), configs=200)
    path = Path(folder) / "layout" / "nlp" / "random" / "train" / "mlp.large.npz"
    save_npz(path, **arrays)
    small = prepare(GraphFile("layout:nlp:random", "train", "mlp.large", path, ours=True))
    rng = np.random.default_rng(seed)
    codes = np.empty((configs, len(small.graph.config_nodes)), np.uint8, order="F")
    for j, many in enumerate(np.diff(small.graph.row_start)):
        codes[:, j] = rng.integers(many, size=configs)
    graph = replace(small.graph, codes=codes, runtime=np.zeros(configs, np.int64), rounds=None)
    return replace(small, graph=graph)


def speed(work: Callable[[], np.ndarray], repeats: int = 3) -> tuple[float, float]:
    """(seconds, configurations a second) of the fastest of a few calls that score something."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        scores = work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), len(scores) / min(seconds)


def speeds(model: CostTables, ranker: ranking.Ranker, graph: Prepared, threads: int) -> list[dict]:
    """Seconds and configurations a second of both models on one graph, from its codes.

    The per-configuration ranker has to build its table first, so on large graphs only the first
    2,000 configurations are given to it. Columns that it was trained with beyond those of the
    graph itself (statistics, message passing) are missing values here.
    """
    rows = _as_trained(graph)
    value = row_values(model, rows, threads)
    part = replace(
        graph.graph, codes=np.asfortranarray(graph.graph.codes[:2000]),
        runtime=graph.graph.runtime[:2000],
    )  # fmt: skip

    def table() -> tuple[np.ndarray, list[str]]:
        features = layout_features(part)
        lacking = [name for name in ranker.columns if name not in features.columns]
        features = features.with_columns(pl.lit(np.nan).alias(name) for name in lacking)
        return features.to_numpy().astype(np.float32), features.columns

    ready = table()
    ways = {
        "cost tables: sums of lookups": lambda: score_rows(graph.graph, rows, value, threads),
        "cost tables: trees walked for the rows, sums": lambda: cost_tables.predict(
            model, graph.graph, rows, threads
        ),
        "cost tables: rows described, trees, sums": lambda: cost_tables.predict(
            model, graph.graph, _as_trained(replace(graph, rows=cost_rows(graph.graph))), threads
        ),
        "rank_pairwise: table given": lambda: ranking.predict(ranker, *ready, threads),
        "rank_pairwise: table and trees": lambda: ranking.predict(ranker, *table(), threads),
    }
    return [
        {"what": name} | dict(zip(("seconds", "configs_per_s"), speed(work)))
        for name, work in ways.items()
    ]


def halves(graph: Prepared, seeds: Iterable[int], gamma: float = LOG, threads: int = 2):
    """Tau on a random half of a graph's distinct configurations, trained on the other; a seed each.

    This asks only whether costs add up, not whether they carry over to another program.
    """
    taus = []
    target = graph.graph.target
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(target))[:HALVES]
        known, rest = np.array_split(order, 2)
        learned = terms(graph.graph, graph.rows, known)
        half = replace(graph, terms=learned, target=target[known])
        model = fit_variant(VARIANTS[""], [half], gamma, seed, threads)
        taus.append(kendall_tau(target[rest], score(VARIANTS[""], model, graph)[rest]))
    return taus
