"""Rank the configurations of graph files with a model of an earlier run:

``python -m utils.rank FILE... [--model PATH] [--collection C] [--top K] [--format table|csv|json]``

Configurations of equal score share a rank, the lowest, and come in the order of the file.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from utils import layout_rows
from utils.coding import Graph, read_graph
from utils.command import at_least, fail, run_command, shown
from utils.dataset import DataError, GraphFile
from utils.explain import label, sentence
from utils.npz import open_npz
from utils.saved_models import RUNS, about, find_model, load_model, stem_of
from utils.schema import COLLECTIONS, OPCODE_ID, SPLITS, TILE_COLLECTION
from utils.sources import RAW, raw_kernels
from utils.tars import SUFFIX

SHOWN = 10  # rows of a table unless --top says otherwise
TERMS = 5  # of an explanation in a table
COLUMNS = ("file", "collection", "rank", "config", "score", "above_best", "above_default")


@dataclass(frozen=True)
class Ranked:
    """The scores of one graph. `default`: the compiler's own choice, None if it isn't there."""

    name: str
    collection: str
    why: str  # how the collection was found
    model: Path
    score: np.ndarray  # float64 [c], larger = slower; only differences mean anything
    default: int | None
    behind: pl.DataFrame | None = None  # why `other` is slower than the best, if asked

    @property
    def order(self) -> np.ndarray:
        """Numbers of the configurations, the fastest first."""
        return np.argsort(self.score, kind="stable")

    @property
    def other(self) -> int:
        """What the best is explained against: a default behind it, else the slowest."""
        best, slowest = self.order[[0, -1]].tolist()
        return slowest if self.default in (None, best) else self.default

    @property
    def places(self) -> np.ndarray:
        """int64 [c]: the rank of each configuration, from 1; equal scores share the lowest."""
        return np.searchsorted(np.sort(self.score), self.score) + 1


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 all ranked, 1 if a file could not be (one line each on standard error)."""
    chosen = parse(argv)
    found, status = [], 0
    for text in file_names(chosen.files):
        try:
            for ranked in rank(Path(text), chosen.model, chosen.collection, chosen.explain):
                found.append(ranked)
                if chosen.format == "table":
                    print(table(ranked, SHOWN if chosen.top is None else chosen.top), flush=True)
        except DataError as error:
            status = fail(error)
    if not found and not status:
        status = fail("-: no name of a file on standard input")
    if chosen.format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(COLUMNS)
        for ranked in found:
            writer.writerows(rows(ranked, chosen.top))
    if chosen.format == "json":
        json.dump([as_json(ranked, chosen.top) for ranked in found], sys.stdout, indent=1)
        print()
    return status


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m utils.rank", description=__doc__.split(":")[0],
        epilog=__doc__.split("\n\n")[-1])
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="an .npz or .pb file; - reads a list of them from "
        "standard input, one a line")
    add("--model", type=Path, help="a model's .ubj or .json file, or the folder of a run "
        f"(default: {', else '.join(RUNS)})")
    add("--explain", action="store_true", help="also say what makes the compiler's own choice "
        "(if it is not there, the slowest) slower than the best; in tables and json")
    add("--collection", metavar="C", choices=COLLECTIONS, help="such as layout:xla:random "
        "(default: by the path of the file, else by what it holds)")
    add("--top", type=at_least(1), metavar="K",
        help=f"only the K fastest (default: {SHOWN} in a table, else all)")
    add("--format", choices=("table", "csv", "json"), default="table")
    return parser.parse_intermixed_args(argv)  # options may stand between the files


def file_names(given: Iterable[str]) -> Iterable[str]:
    """The names on the command line; ``-`` stands for those on standard input."""
    for name in given:
        yield from (filter(None, map(str.strip, sys.stdin)) if name == "-" else (name,))


def rank(
    path: Path, model: Path | None = None, collection: str | None = None, explain: bool = False
) -> list[Ranked]:
    """The ranked graphs of a file: one, but a raw tile file holds several.

    Raises DataError, one line, if the file or the model is not what it should be.
    """
    if path.is_dir():
        raise DataError(f"{path}: a folder; name the files in it, such as {path}/*.npz")
    if path.suffix == SUFFIX and path.is_file():
        raise DataError(f"{path}: a tar; name a file in it, such as {path}/FOLDER/NAME.npz")
    collection, why = collection_of(path, model, collection)
    tile = collection == TILE_COLLECTION
    if path.suffix != RAW and _is_tile(path) != tile:
        kind = "layout" if tile else "tile"
        raise DataError(f"{path}: a {kind} file, not one of {collection} ({why})")
    fitted = load_model(find_model(model, collection))
    if (fitted.collection == TILE_COLLECTION) != tile:
        what = f"the model {fitted.stem} is of {fitted.collection}"
        raise DataError(f"{path}: of {collection} ({why}), but {what}")
    kernels = len(raw_kernels(path)) if path.suffix == RAW and tile else 1
    split = next((part for part in reversed(path.parts) if part in SPLITS), "")
    result = []
    for kernel in range(kernels):
        file = GraphFile(collection, split, path.stem, path, kernel=kernel)
        graph = read_graph(file)
        name = f"{path}#{kernel}" if kernels > 1 else str(path)
        default = default_config(graph)
        found = Ranked(name, collection, why, fitted.stem, fitted.score(graph), default)
        if explain:
            behind = fitted.explain(graph, found.other, int(found.order[0]))
            found = replace(found, behind=behind)
        result.append(found)
    return result


def collection_of(path: Path, model: Path | None, given: str | None) -> tuple[str, str]:
    """(collection, how it was found): as given, by the path, by the model, by the contents."""
    if given:
        return given, "as given"
    parts = path.absolute().parts
    for collection in COLLECTIONS:
        words = tuple(collection.split(":"))
        together = "_".join(words)
        if any(parts[i : i + len(words)] == words for i in range(len(parts))) or any(
            together in part for part in parts[:-1]
        ):
            return collection, "by its path"
    tile, convolution = _contents(path)
    if tile:
        return TILE_COLLECTION, "by its contents"
    if model is not None and not model.is_dir():
        collection = about(stem_of(model)).get("collection")
        if collection in COLLECTIONS and collection != TILE_COLLECTION:
            return collection, "by the model"
    source = "xla" if convolution else "nlp"
    return f"layout:{source}:random", "a guess by its contents: --collection says otherwise"


def _is_tile(path: Path) -> bool:
    """Is an npz file one of tiles? Raises DataError if it has no configurations at all."""
    with open_npz(path) as archive:
        names = set(archive.namelist())
    if not names & {"config_feat.npy", "node_config_feat.npy"}:
        raise DataError(f"{path}: neither a layout nor a tile file: no configurations in it")
    return "config_feat.npy" in names


def _contents(path: Path) -> tuple[bool, bool]:
    """(is it a tile file, has it a convolution)."""
    if path.suffix == RAW:
        file = GraphFile("layout:xla:random", "", path.stem, path)
        try:
            opcode = read_graph(file).opcode
        except DataError:
            raw_kernels(path)
            return True, False
        return False, bool((opcode == OPCODE_ID["convolution"]).any())
    if _is_tile(path):
        return True, False
    opcode = read_graph(GraphFile("layout:xla:random", "", path.stem, path)).opcode
    return False, bool((opcode == OPCODE_ID["convolution"]).any())


def default_config(graph: Graph) -> int | None:
    """The compiler's own choice: the configuration that sets no layout; of a labelled tile kernel
    the first one that takes as long as the normalizer says."""
    if graph.codes is None:
        same = np.flatnonzero(graph.runtime == graph.normalizer) if graph.labelled else []
        return int(same[0]) if len(same) else None
    return layout_rows.default_config(graph)


def rows(ranked: Ranked, top: int | None = None) -> Iterable[tuple]:
    """One row a configuration, the fastest first, see COLUMNS; None where there is no default."""
    order, score, places = ranked.order[:top], ranked.score, ranked.places
    base = None if ranked.default is None else score[ranked.default]
    for config in order.tolist():
        above = None if base is None else float(score[config] - base)
        yield (ranked.name, ranked.collection, int(places[config]), config, float(score[config]),
               float(score[config] - score[order[0]]), above)  # fmt: skip


def as_json(ranked: Ranked, top: int | None = None) -> dict:
    """One graph as plain data."""
    facts = {"file": ranked.name, "collection": ranked.collection, "collection_found": ranked.why}
    facts |= {"model": shown(ranked.model), "default_config": ranked.default}
    if ranked.behind is not None:
        about = {"slower": ranked.other, "faster": int(ranked.order[0])}
        facts["explanation"] = about | {"terms": ranked.behind.to_dicts()}
    return facts | {"ranking": [dict(zip(COLUMNS[2:], row[2:])) for row in rows(ranked, top)]}


def table(ranked: Ranked, top: int) -> str:
    """One graph as text."""
    count, places = len(ranked.score), ranked.places
    lines = [
        f"{ranked.name}: {ranked.collection} ({ranked.why}), {count:,} configurations",
        f"model {shown(ranked.model)}; a larger score is slower",
    ]
    if ranked.default is None:
        lines.append("the compiler's own choice is not among them, as far as the file says")
    else:
        place = places[ranked.default]
        others = np.count_nonzero(places == place) - 1
        tied = f", tied with {others:,} more" if others else ""
        lines.append(f"the compiler's own choice, {ranked.default}, is ranked {place:,}{tied}")
    lines.append(f"{'rank':>7}{'config':>9}{'score':>12}{'above best':>12}{'above default':>15}")
    for _, _, place, config, score, best, default in rows(ranked, top):
        last = f"{default:>15.4f}" if default is not None else f"{'':>15}"
        lines.append(f"{place:>7}{config:>9}{score:>12.4f}{best:>12.4f}{last}".rstrip())
    hidden = np.count_nonzero(places <= place) - min(top, count)
    if hidden:
        lines.append(f"and {hidden:,} more of rank {place:,}")
    lines += explanation(ranked)
    return "\n".join(lines) + "\n"


def explanation(ranked: Ranked) -> list[str]:
    """Lines that say why the compiler's own choice or the slowest is behind the best, if asked."""
    if ranked.behind is None:
        return []
    name = "the compiler's own choice" if ranked.other == ranked.default else "the slowest"
    names = f"{name} ({ranked.other})", f"the best ({ranked.order[0]})"
    lines = [sentence(ranked.behind, *names)]
    lines += [f"{line['adds']:>+12.4f}  {label(line)}" for line in ranked.behind[:TERMS].to_dicts()]
    if (left := len(ranked.behind) - TERMS) > 0:
        lines.append(f"{ranked.behind['adds'][TERMS:].sum():>+12.4f}  the other {left} together")
    return lines


if __name__ == "__main__":
    run_command(main)
