"""The results table, what it says in words, and the one-page report of a run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl

from utils import benchmark
from utils.evaluate import read_metrics
from utils.files import atomic_path
from utils.ranking import ABLATIONS, FLOORS, TRAINED
from utils.schema import COLLECTIONS, LAYOUT_COLLECTIONS, TILE_COLLECTION

PROTOCOLS = {
    "valid": "Trained on the train split, scored on the valid split",
    "family_cv": "Program families never seen in training (grouped cross-validation)",
    "test": "Trained on the train split, scored on the hidden test split",
}
START, END = "<!-- results -->", "<!-- /results -->"


LEGEND = (
    "Layout: Kendall's tau. Tile: 1 - slowdown of the best of five. Mean over graphs{}. The noise "
    "ceiling is what a noise-free oracle would score against the measured runtimes. Bold: the best."
)
NETWORK = "gnn/extra"  # the one that is told what the cost tables are told
DRAWS = ", then over seeds and fold assignments (± their standard deviation)"


def results_table(metrics: list[dict], protocols: tuple[str, ...] = ("valid", "family_cv")) -> str:
    """Markdown: for each protocol a table of models by collections.

    A cell is the mean over seeds (and fold assignments) of the mean over graphs, with the
    standard deviation over seeds and assignments where there are several: Kendall's tau for
    layout, the competition's 1 - slowdown for tile. The best model of a column is bold. The
    legend is left out under a table of the test split alone, which stands below another.
    """
    parts = [_protocol_table(metrics, p) for p in protocols if _models(metrics, p)]
    if not parts:
        return "Nothing was scored."
    legend = LEGEND.format(DRAWS if any("±" in part for part in parts) else "")
    return "\n\n".join(parts if protocols == ("test",) else [*parts, legend])


def _protocol_table(metrics: list[dict], protocol: str) -> str:
    collections = [c for c in COLLECTIONS if _cells(metrics, protocol, c)]
    layouts = [c for c in collections if c in LAYOUT_COLLECTIONS]
    cells = {c: _cells(metrics, protocol, c) for c in collections}
    columns = {c.removeprefix("layout:"): cells[c] for c in layouts}
    if len(layouts) > 1:
        columns["layout mean"] = _layout_mean([cells[c] for c in layouts])
    if TILE_COLLECTION in collections:
        columns[TILE_COLLECTION] = cells[TILE_COLLECTION]
    lines = [f"**{PROTOCOLS[protocol]}**", ""]
    lines.append("| | " + " | ".join(columns) + " |")
    lines.append("|---|" + "---:|" * len(columns))
    best = {
        name: max((round(m, 3) for key, (m, _) in column.items() if key != "ceiling"), default=None)
        for name, column in columns.items()
    }
    known = any("ceiling" in column for column in columns.values())
    for model in [*_models(metrics, protocol), *(["ceiling"] if known else [])]:
        texts = []
        for name, column in columns.items():
            mean, deviation = column.get(model, (None, None))
            text = "" if mean is None else f"{mean:.3f}"
            if text and model != "ceiling" and round(mean, 3) == best[name]:
                text = f"**{text}**"
            texts.append(text + (f" ± {deviation:.3f}" if deviation is not None else ""))
        label = "noise ceiling" if model == "ceiling" else f"`{model}`"
        lines.append(f"| {label} | " + " | ".join(texts) + " |")
    counts = [_graphs(metrics, protocol, c) for c in layouts]
    counts += [sum(counts)] if len(layouts) > 1 else []
    counts += [_graphs(metrics, protocol, c) for c in collections if c == TILE_COLLECTION]
    lines.append("| graphs scored | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines)


def score_key(collection: str) -> str:
    """The competition's metric of a collection: tile_score or tau."""
    return "tile_score" if collection == TILE_COLLECTION else "tau"


def _select(metrics: list[dict], protocol: str, collection: str) -> list[dict]:
    return [r for r in metrics if r["protocol"] == protocol and r["collection"] == collection]


def _cells(
    metrics: list[dict], protocol: str, collection: str
) -> dict[str, tuple[float, float | None]]:
    """Model -> (mean, standard deviation or None) over its records; 'ceiling' among them."""
    values: dict[str, list[float]] = {}
    for record in _select(metrics, protocol, collection):
        for model, value in (
            (record["model"], record[score_key(collection)]),
            ("ceiling", record["ceiling"]),
        ):
            if value is not None:
                values.setdefault(model, []).append(value)
    cells = {}
    for model, found in values.items():
        several = len(found) > 1 and model != "ceiling"
        cells[model] = (float(np.mean(found)), float(np.std(found, ddof=1)) if several else None)
    return cells


def _layout_mean(cells: list[dict]) -> dict[str, tuple[float, None]]:
    """Mean over collections of the models that all of them have."""
    common = set.intersection(*(set(cell) for cell in cells))
    return {model: (float(np.mean([c[model][0] for c in cells])), None) for model in common}


def _graphs(metrics: list[dict], protocol: str, collection: str) -> int:
    return max(record["graphs"] for record in _select(metrics, protocol, collection))


def _models(metrics: list[dict], protocol: str) -> list[str]:
    """Models of a protocol: floors, trained models, later models, ablations."""
    there = {r["model"] for r in metrics if r["protocol"] == protocol}
    known = [*FLOORS, *TRAINED]
    later = sorted(m for m in there if m not in known and "/" not in m)
    ablations = [m for m in ABLATIONS if m in there]
    ablations += sorted(m for m in there if "/" in m and m not in ablations)
    return [m for m in known if m in there] + later + ablations


def sentences(metrics: list[dict]) -> list[str]:
    """What the table says in words: the share of the ceiling, and every floor that is ahead."""
    said = []
    for protocol in ("valid", "family_cv"):
        cells = {c: _cells(metrics, protocol, c) for c in COLLECTIONS}
        shares = [
            cells[c]["rank_pairwise"][0] / cells[c]["ceiling"][0]
            for c in LAYOUT_COLLECTIONS
            if {"rank_pairwise", "ceiling"} <= set(cells[c])
        ]
        where = "the valid split" if protocol == "valid" else "unseen families"
        if shares:
            said.append(
                f"On {where} `rank_pairwise` reaches {np.mean(shares):.2f} of the noise ceiling, "
                f"mean over {len(shares)} layout collection{'s' if len(shares) > 1 else ''}."
            )
        for collection, cell in cells.items():
            said += [
                f"On {where} of `{collection}` the untrained `{floor}` "
                f"({cell[floor][0]:.3f}) is ahead of `rank_pairwise` "
                f"({cell['rank_pairwise'][0]:.3f})" + _also(cell, floor) + "."
                for floor in ("loop_bytes", "byte_count", "choice_frequency", "config_frequency")
                if {floor, "rank_pairwise"} <= set(cell)
                and cell[floor][0] > cell["rank_pairwise"][0]
            ]
    return said


def _also(cell: dict, floor: str) -> str:
    """The trained model that does beat the floor, if any."""
    others = {m: v[0] for m, v in cell.items() if m not in (*FLOORS, "ceiling") and "/" not in m}
    best = max(others, key=others.get)
    return f"; `{best}` has {others[best]:.3f}" if others[best] > cell[floor][0] else ""


def cost_table(metrics: list[dict], protocol: str = "valid") -> str:
    """Markdown: what a fit costs, mean over collections and seeds, and the largest memory."""
    rows = []
    for model in _models(metrics, protocol):
        own = [r for r in metrics if r["model"] == model and r["protocol"] == protocol]
        if all(record["fit_s"] is None for record in own):
            continue
        fit, speed, peak = (
            [r[key] for r in own if r[key] is not None]
            for key in ("fit_s", "configs_per_s", "peak_mb")
        )
        cells = [f"{np.mean(fit):.1f}" if fit else "", f"{np.median(speed):,.0f}" if speed else ""]
        cells.append(f"{max(peak):,.0f}" if peak else "")
        rows.append(f"| `{model}` | " + " | ".join(cells) + " |")
    if not rows:
        return ""
    head = "| | fit, s | configurations/s, features given | peak memory, MB |"
    return "\n".join([head, "|---|---:|---:|---:|", *rows])


def readme_table(metrics: list[dict]) -> str:
    """`results_table` without ablations and combinations: names with a slash, but for NETWORK."""
    shown = (r for r in metrics if "/" not in r["model"] or r["model"] == NETWORK)
    return results_table(list(shown))


def update_readme(readme: Path, metrics: list[dict]) -> None:
    """Put the results table between the markers of a Markdown file.

    Raises ValueError when the file doesn't have both markers once.
    """
    text = Path(readme).read_text(encoding="utf-8")
    if text.count(START) != 1 or text.count(END) != 1:
        raise ValueError(f"{readme}: needs {START} and {END} once each")
    before, rest = text.split(START)
    after = rest.split(END)[1]
    with atomic_path(readme) as temporary:
        body = f"{before}{START}\n\n{readme_table(metrics)}\n\n{END}{after}"
        temporary.write_text(body, encoding="utf-8")


def write_report(out: Path, figures: tuple[str, str] = ("08_scores", "08_graphs")) -> Path:
    """Write out/report.md from what the run left in `out`; what isn't there is left out.

    Reads metrics.json, figures/, tables/study_notes.json, tables/submission_models.json and
    tables/benchmark.parquet.
    """
    out = Path(out)
    metrics = read_metrics(out / "metrics.json")
    parts = ["# How well the configurations were ranked", results_table(metrics)]
    said = sentences(metrics) + _read_list(out / "tables" / "study_notes.json")
    if said:
        parts.append("\n".join(f"- {line}" for line in said))
    titles = ("Scores of every model against the floors and the noise ceiling", "Graph by graph")
    pictures = [
        f"![{title}](figures/{name}.png)"
        for name, title in zip(figures, titles)
        if (out / "figures" / f"{name}.png").exists()
    ]
    if pictures:
        parts += ["## Pictures", *pictures]
    chosen = _read_list(out / "tables" / "submission_models.json")
    if chosen:
        lines = ["| collection | model | why | score there |", "|---|---|---|---:|"]
        for c in chosen:
            score = "" if c["score"] is None else f"{c['score']:.3f}"
            lines.append(f"| {c['collection']} | `{c['model']}` | {c['reason']} | {score} |")
        parts += ["## Submission", "\n".join(lines)]
        if _models(metrics, "test"):
            parts.append(results_table(metrics, ("test",)))
    if (out / benchmark.TABLE).exists():
        parts += ["## Speed and memory", benchmark.markdown(pl.read_parquet(out / benchmark.TABLE))]
    parts += ["## How it was made", _how(metrics, out)]
    if cost := cost_table(metrics):
        parts.append(cost)
    path = out / "report.md"
    with atomic_path(path) as temporary:
        temporary.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _read_list(path: Path) -> list:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def _how(metrics: list[dict], out: Path) -> str:
    assigned = {r["fold_assignment"] for r in metrics} - {None}
    text = (
        "Graphs and configurations became one row of features a distinct configuration; boosted "
        "trees were fitted on them, one model a collection, and every row of a file was scored as "
        "it was measured. Untrained floors stand beside: `random`, the frequency of the exact "
        "configuration in its file, the mean log frequency of the nodes' choices, and the bytes "
        "of the layouts that are not row-major (on tile the number of tiles)."
    )
    text += f" The means are over seeds {seeds_in(metrics)}; fold assignments: {len(assigned)}."
    if (out / "manifest.json").exists():
        text += " Data hash, versions, times, and the parameters of each notebook's last run alone,"
        text += " whatever seeds earlier ones added: [manifest.json](manifest.json)."
    return text + " Every score: [metrics.json](metrics.json)."


def seeds_in(metrics: list[dict]) -> str:
    """The seeds of trained models, such as '0, 1 (but `gnn`: 0)': the usual ones first, then the
    models, and where it isn't everywhere the collections and protocols, that have others."""
    found: dict[tuple[str, str, str], set[int]] = {}
    for r in metrics:
        if r["model"] not in FLOORS:
            key = (r["model"], r["collection"], r["protocol"])
            found.setdefault(key, set()).add(r["seed"])
    if not found:
        return "none"
    texts = {key: ", ".join(map(str, sorted(seeds))) for key, seeds in found.items()}
    ((usual, _),) = Counter(texts.values()).most_common(1)
    others: dict[tuple[str, str], list[str]] = {}
    for (model, collection, protocol), text in texts.items():
        if text != usual:
            others.setdefault((model, text), []).append(f"{collection} {protocol}")
    said = []
    for (model, text), places in others.items():
        everywhere = len(places) == sum(key[0] == model for key in texts)
        where = "" if everywhere else f" on {', '.join(places)}"
        said.append(f"`{model}`{where}: {text}")
    return usual + (f" (but {'; '.join(said)})" if said else "")
