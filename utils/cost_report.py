"""What notebook 06 shows of the cost tables: comparisons, and where costs come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from utils import cost_tables
from utils.cost_graphs import Prepared, take
from utils.cost_rows import KINDS, SLOT, score_rows
from utils.cost_study import FULL, MODEL, default_gamma, fit_variant, score, seen_rows
from utils.cost_tables import LOG, CostTables, row_values
from utils.dataset import GraphFile
from utils.layout_rows import byte_count, describe_slots
from utils.metrics import kendall_tau
from utils.model_files import is_saved, model_stem
from utils.notebook import Run
from utils.schema import OPCODES, SLOTS
from utils.tensors import node_dimensions

GRAPH = ["collection", "split", "name"]
DRAW = ("fold_assignment", "seed")
HALVES = 4000  # configurations of a graph that `halves` looks at, at most


def overall(scores: pl.DataFrame, files: Iterable[GraphFile], base: str = MODEL) -> pl.DataFrame:
    """Every model on all layout graphs that `base` has scores of, paired by family.

    scores: from `evaluate.graph_scores`, with a ceiling column. Seeds and fold assignments are
    averaged first; for an ablation (a name with a slash) those that it has itself. Columns: model,
    graphs, tau (mean over graphs), of_ceiling (mean tau over mean ceiling), difference (base less
    model, mean over families), error (standard error of it).
    """
    family = {(f.collection, f.split, f.name): f.family or f.name for f in files}
    table = scores.filter(pl.col("rankable") & pl.col("collection").str.starts_with("layout"))
    own = table.filter(pl.col("model") == base).select(*GRAPH, *DRAW, base=pl.col("tau"))
    everywhere = own.group_by(GRAPH).agg(pl.col("base").mean())
    both = (
        table.join(own.rename({"base": "same"}), on=[*GRAPH, *DRAW], how="left", nulls_equal=True)
        .group_by(*GRAPH, "model")
        .agg(pl.col("tau", "ceiling", "same").mean())
        .join(everywhere, on=GRAPH)
        .with_columns(
            base=pl.when(pl.col("model").str.contains("/")).then("same").otherwise("base")
        )
    )
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
    known = pl.col("tau").filter(pl.col("ceiling").is_not_null())
    mean = both.group_by("model").agg(
        pl.len().alias("graphs"), pl.col("tau").mean(),
        (known.mean() / pl.col("ceiling").mean()).alias("of_ceiling"),
    )
    return mean.join(paired, on="model").sort("tau", "model", descending=[True, False])


def sentences(
    protocol: str, table: pl.DataFrame,
    models: Sequence[str] = ("byte_count", "loop_bytes", "rank_pairwise"), base: str = MODEL,
) -> list[str]:
    """What `overall` says of `base` beside some models."""
    lines = {row["model"]: row for row in table.to_dicts()}
    if base not in lines:
        return [f"{protocol}: nothing to compare"]
    said = []
    for model in models:
        gain, error = (lines.get(model, {}).get(key) for key in ("difference", "error"))
        if gain is None:
            continue
        line = f"{protocol}: {base} is {abs(gain):.3f}"
        where = ("ahead of " if gain > 0 else "behind ") + model
        if error is None:
            said.append(f"{line} {where}, on a single family")
        else:
            doubt = "; two standard errors do not separate that from nothing"
            said.append(f"{line} ± {error:.3f} {where}" + doubt * (abs(gain) <= 2 * error))
    return said


def beside_the_ceiling(protocol: str, table: pl.DataFrame) -> list[str]:
    """How far the byte count gets, and what cost tables find of the rest below the ceiling."""
    lines = {row["model"]: row for row in table.to_dicts()}
    own, floor = lines.get(MODEL), lines.get("byte_count")
    if not (own and own["of_ceiling"]):
        return []
    said = f"{protocol}: {MODEL} reaches {own['of_ceiling']:.2f} of the noise ceiling"
    if floor and floor["of_ceiling"] < 1:
        found = (own["of_ceiling"] - floor["of_ceiling"]) / (1 - floor["of_ceiling"])
        rest = f"of what that leaves, {found:.0%} is" if found > 0 else "nothing more is"
        said += f", byte_count {floor['of_ceiling']:.2f}; {rest} found"
    return [said]


def saved_models(run: Run) -> dict[str, CostTables]:
    """The models that the study saved, by collection."""
    stems = {c: model_stem(run.out, c, MODEL) for c in run.collections}
    return {c: cost_tables.load_model(stem) for c, stem in stems.items() if is_saved(stem)}


def gammas(run: Run) -> pl.DataFrame:
    """Which gammas were tried and taken: collection, gamma, stored, fits, tau.

    stored: is it the one that is taken without a choice; fits: how many took it; tau: mean over
    training sets of the held-out tau, null where none was chosen.
    """
    rows = []
    for collection in (c for c in run.collections if c.startswith("layout")):
        stored = default_gamma([file for file in run.files if file.collection == collection])
        folder = run.out / "tables" / "predictions" / collection.replace(":", "_") / MODEL
        for path in sorted(folder.glob("*.json")):
            costs = json.loads(path.read_text(encoding="utf-8"))
            if not path.stem.startswith("test"):
                taken = float(costs["gamma"])
                for gamma, tau in (costs["gamma_taus"] or {taken: None}).items():
                    gamma = float(gamma)
                    rows.append((collection, gamma, gamma == stored, gamma == taken, tau))
    keys = {"collection": pl.String, "gamma": pl.Float64, "stored": pl.Boolean}
    table = pl.DataFrame(rows, keys | {"fits": pl.Boolean, "tau": pl.Float64}, orient="row")
    return table.group_by(*keys).agg(pl.col("fits").sum(), pl.col("tau").mean()).sort(*keys)


def gamma_sentences(table: pl.DataFrame) -> list[str]:
    """`gammas` in words."""
    said = []
    for (collection,), part in table.group_by("collection", maintain_order=True):
        most = part.sort("fits", maintain_order=True).row(-1, named=True)
        if most["tau"] is None:
            said.append(f"{collection}: gamma {most['gamma']:g} was given")
            continue
        share = f"{most['fits']} of {part['fits'].sum()} fits"
        best = part.sort("tau", maintain_order=True).row(-1, named=True)
        said.append(f"{collection}: gamma {most['gamma']:g} was chosen by {share}")
        if len(stored := part.filter("stored")):
            ahead = best["tau"] - stored["tau"][0]
            said[-1] += f"; {best['gamma']:g} is best on held-out families, "
            beside = f"{ahead:.3f} ahead of the stored {stored['gamma'][0]:g}"
            said[-1] += beside if ahead else "as is stored"
    return said


def score_shares(model: CostTables, graphs: Sequence[Prepared]) -> dict[str, float]:
    """What the scores of a graph are made of, as shares of their variance, mean over graphs.

    byte_count: what a straight line in the byte count explains. Each kind of row: its part of the
    rest, the covariance with the rest over the variance of the whole. The shares add up to 1.
    """
    shares = []
    for graph in graphs:
        rows = seen_rows(graph.rows)
        value = row_values(model, rows)
        parts = np.array([
            score_rows(graph.graph, rows, value * (rows.kind == k)) for k in range(len(KINDS))
        ])  # fmt: skip
        parts -= parts.mean(1, keepdims=True)
        plain = byte_count(graph.graph)
        plain -= plain.mean()
        whole = (parts.sum(0) ** 2).sum()
        parts -= np.outer(parts @ plain / ((plain @ plain) or 1.0), plain)
        rest = parts.sum(0)
        if whole:
            shares.append([1 - rest @ rest / whole, *parts @ rest / whole])
    mean = np.mean(shares, axis=0).tolist() if shares else [0.0] * (1 + len(KINDS))
    return dict(zip(("byte_count", *KINDS), mean))


def share_sentence(collection: str, shares: dict[str, float]) -> str:
    """`score_shares` in words."""
    rest = {kind: share for kind, share in shares.items() if kind != "byte_count"}
    left = sum(rest.values()) or 1.0
    order = sorted(rest, key=rest.get, reverse=True)
    parts = ", ".join(f"{kind} {rest[kind] / left:.0%}" for kind in order)
    explained = f"the byte count explains {shares['byte_count']:.0%} of the scores"
    return f"{collection}: {explained}; the rest by kind of row: {parts}"


def layout_costs(model: CostTables, graph: Prepared, top: int = 8) -> pl.DataFrame:
    """The slots whose layout matters most: what the costliest layout adds to the cheapest."""
    slots = describe_slots(graph.graph)
    rows = seen_rows(graph.rows)
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


def halves(
    graph: Prepared, seeds: Iterable[int], gamma: float = LOG, threads: int = 2
) -> list[float]:
    """Tau on a random half of a graph's distinct configurations, trained on the other; a seed each.

    This asks only whether costs add up, not whether they carry over to another program.
    """
    taus = []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(graph.graph.configs)[:HALVES]
        known, rest = (take(graph, half) for half in np.array_split(order, 2))
        model = fit_variant(FULL, [known], gamma, seed, threads)
        taus.append(kendall_tau(rest.graph.target, score(FULL, model, rest, threads)))
    return taus
