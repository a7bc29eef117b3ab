"""The network in the study of the rankers: its variants, its fits, and when training stops.

Predictions lie beside those of the other models and in the same shape (`utils.study`). Training
stops by the tau of program families that are held out of the training graphs; neither the valid
split nor the fold that is scored is looked at.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from utils import gnn, ranking, study
from utils.coding import deduplicate
from utils.cost import measured
from utils.dataset import GraphFile
from utils.gnn_graphs import GnnGraph, describe
from utils.gnn_network import Settings
from utils.graph_cache import cached_graph
from utils.made_of import mark
from utils.notebook import Run
from utils.progress import progress
from utils.study import Fit

MODEL = "gnn"
VARIANTS: dict[str, dict] = {  # what each changes in the settings
    "": {},
    "extra": {"extra": True},  # the inputs that the trees have
    "sized": {"extra": True, "sized": True},  # and their weights
    "equal_pairs": {"extra": True, "weighted": False},
    "listmle": {"extra": True, "loss": "listmle"},
    "cross": {"extra": True, "cross": True},
    "two_layers": {"extra": True, "layers": 2},
    "wide": {"extra": True, "hidden": 128},
    "slow": {"extra": True, "rate": 5e-4},
    "dropout": {"extra": True, "dropout": 0.2},
}
HELD_OUT = 5  # one in so many parts of the training families tells when to stop
_MADE_BY = (
    "contraction cost_rows gnn gnn_graphs gnn_network gnn_study layout_edges layout_rows "
    "layout_tables message_passing metrics node_costs opcode_groups ranking recompute roles "
    "structure tensors tile_features"
)


class Graphs:
    """Described graphs, distinct configurations only, made when they are first asked for."""

    def __init__(self, run: Run) -> None:
        self.run, self.kept = run, {}

    def __call__(self, file: GraphFile, settings: Settings) -> GnnGraph:
        key = (file, settings.extra, settings.layers)
        if key not in self.kept:
            graph, _, _ = deduplicate(cached_graph(self.run, file))
            self.kept[key] = describe(graph, settings.extra, settings.layers)
        return self.kept[key]


def first_configs(graph: GnnGraph, limit: int) -> GnnGraph:
    """The graph with at most `limit` configurations (0: all), drawn by its name."""
    if not limit or graph.configs <= limit:
        return graph
    draw = np.random.default_rng(zlib.crc32(graph.file.id.encode()))
    chosen = np.sort(draw.choice(graph.configs, limit, replace=False))
    if graph.codes is None:
        return replace(graph, row=graph.row[chosen], target=graph.target[chosen])
    return replace(graph, codes=graph.codes[chosen], target=graph.target[chosen])


def part_files(
    files: Sequence[GraphFile], seed: int
) -> tuple[list[GraphFile], list[GraphFile]]:
    """(trained on, held out): one part in HELD_OUT of the families, none if there is one family."""
    files = sorted(files, key=lambda file: (file.id, file.split))
    fold = ranking.family_folds(files, HELD_OUT, seed)
    held = fold == fold.max() if fold.max() > 0 else np.zeros(len(files), bool)
    return [f for f, out in zip(files, held) if not out], [f for f, out in zip(files, held) if out]


def settings_of(model: str, files: Sequence[GraphFile], **changes) -> Settings:
    """Settings of a variant. With a single family there is nothing to generalize from but ranks:
    all pairs count alike. Raises KeyError for an unknown variant."""
    several = len({file.family or file.name for file in files}) > 1
    chosen = {} if several else {"weighted": False}
    return Settings(**{**VARIANTS[model.partition("/")[2]], **chosen, **changes})


def train(
    fit: Fit, graphs: Graphs, settings: Settings, max_configs: int = 0, refit: bool = False,
    threads: int = 2, device: str = "cpu",
) -> tuple[gnn.Trained, dict]:
    """Fit one model; returns it and what to note about its training.

    refit: train again on all graphs, the held-out ones included, for as many epochs as were best.
    """
    learn, held = part_files(fit.train, fit.seed)
    learned = [first_configs(graphs(file, settings), max_configs) for file in learn]
    checked = [first_configs(graphs(file, settings), max_configs) for file in held]
    common = {"seed": fit.seed, "threads": threads, "device": device}
    trained = gnn.fit(learned, settings, checked, **common)
    noted = {"history": trained.history, "epochs": trained.epochs, "refit": bool(refit and held)}
    noted["held_out"] = sorted({file.family or file.name for file in held})
    if refit and held:
        trained = gnn.fit([*learned, *checked], settings, stop_at=trained.epochs, **common)
    return trained, noted


def run_fits(
    run: Run, fits: Sequence[Fit], max_configs: int = 0, refit: bool = False, save_seed: int = 0,
    threads: int = 2, device: str = "cpu", **changes,
) -> int:
    """Run every fit whose files aren't there; returns how many were run.

    changes: of `Settings`, on top of the variants. The models of `save_seed` that were trained on
    train are saved.
    """
    done, graphs = 0, Graphs(run)
    for number, fit in enumerate(progress(fits, desc="fits", unit="fit")):
        if number and fit.collection != fits[number - 1].collection:
            graphs.kept.clear()
        settings = settings_of(fit.model, fit.train, **changes)
        files = [*fit.train, *(file for of in fit.scored.values() for file in of)]
        parts = (settings, max_configs, refit, fit.seed, threads, device)
        made_of = mark(_MADE_BY, *parts, *(file.path for file in files))
        stems = {p: study.stem_of(run, fit, p) for p, of in fit.scored.items() if of}
        keep = fit.fold is None and fit.seed == save_seed
        place = model_stem(run, fit.collection, fit.model)
        if all(study.is_done(s, made_of) for s in stems.values()) and not (
            keep and not is_saved(place)
        ):
            continue
        for file in files:  # reading is no part of what a fit costs
            graphs(file, settings)
        with measured() as cost:
            trained, noted = train(fit, graphs, settings, max_configs, refit, threads, device)
        for protocol, stem in stems.items():
            with measured() as used:
                found = {
                    file: gnn.predict(trained, graphs(file, settings), device=device)
                    for file in fit.scored[protocol]
                }
            rows = sum(map(len, found.values()))
            costs = {"fit_s": cost.seconds, "predict_s": used.seconds}
            costs |= {"configs_per_s": rows / used.seconds} | noted
            peaks = [peak for peak in (cost.peak_mb, used.peak_mb) if peak is not None]
            costs["peak_mb"] = max(peaks, default=None)
            study.write_predictions(stem, found, **costs, made_of=made_of)
        if keep:
            facts = {"collection": fit.collection, "seed": fit.seed, "held_out": noted["held_out"]}
            ids = [file.id for file in fit.train]
            gnn.save_model(trained, place, **facts, refit=noted["refit"], trained_on=ids)
        done += 1
    return done


def model_stem(run: Run, collection: str, model: str) -> Path:
    """Where a saved network lies, without the ending (.npz and .json)."""
    folder = Path(run.out) / "models" / collection.replace(":", "_")
    return folder / model.replace("/", "__")


def is_saved(stem: Path) -> bool:
    """Are a network's two files there?"""
    return all(stem.with_name(stem.name + end).exists() for end in (".npz", ".json"))
