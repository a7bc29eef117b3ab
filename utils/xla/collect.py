"""Measure JAX programs on XLA:CPU and write the results as TpuGraphs files.

    python -m utils.xla.collect PROGRAMS.py --out DIR [--collections ...] [--configs N]
                                [--seed S] [--resume]

PROGRAMS.py is a Python file with ``programs()`` that yields (name, function, example_args)
and/or ``kernels()`` that yields (name, function, example_args, tiling); a name is
``<family>.<variant>``. Two optional dicts, keyed by name or family: ``SPLIT`` (train, valid or
test; default train) and ``SOURCE`` (nlp or xla; default xla).
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import re
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np

from utils.command import at_least, fail, folder_path, run_command
from utils.dataset import DataError
from utils.hlo import module_graph
from utils.progress import progress
from utils.schema import COLLECTIONS, LAYOUT_COLLECTIONS, SPLITS, TILE_COLLECTION
from utils.xla import jaxprs, layouts, record, tiles, timing
from utils.xla.jaxprs import ProgramError

TILE_CONFIGS = 32  # of a kernel at most
TWICE = 4  # configurations that are compiled and measured twice: the noise of executables
NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)+")


def load_programs(path: Path) -> object:
    """Import a programs file; DataError in one line when that fails."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None:
        raise DataError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DataError(f"{path}: {jaxprs.reason(error)}") from error
    if not hasattr(module, "programs") and not hasattr(module, "kernels"):
        raise DataError(f"{path}: defines neither programs() nor kernels()")
    return module


def work(module: object, path: Path, collections: list[str], only: str) -> Iterator[tuple]:
    """The graphs to measure: (collection, split, program), program as the file yields it."""
    def by_name(table: str, name: str, default: str, allowed: tuple[str, ...]) -> str:
        values = getattr(module, table, {})
        value = values.get(name, values.get(name.split(".")[0], default))
        if value not in allowed:
            raise DataError(f"{path}: {table} of {name} is {value!r}, not one of {allowed}")
        return value

    seen = set()
    for kind in ("programs", "kernels"):
        try:
            yielded = list(getattr(module, kind, tuple)())
            names = [program[0] for program in yielded]
        except Exception as error:
            raise DataError(f"{path}: {kind}(): {jaxprs.reason(error)}") from error
        for name, program in zip(names, yielded):
            if not NAME.fullmatch(name) or name in seen:
                reason = "named twice" if name in seen else "a name is <family>.<variant>"
                raise DataError(f"{path}: {name!r}: {reason}")
            seen.add(name)
            split = by_name("SPLIT", name, "train", SPLITS)
            if not fnmatch.fnmatch(name, only):
                continue
            if kind == "kernels":
                wanted = [TILE_COLLECTION]
            else:
                source = by_name("SOURCE", name, "xla", ("nlp", "xla"))
                wanted = [c for c in LAYOUT_COLLECTIONS if c.split(":")[1] == source]
            yield from ((c, split, program) for c in wanted if c in collections)


def compile_all(functions: list, args: tuple, jobs: int) -> list:
    """Compile; an entry that the compiler refuses is None."""
    def attempt(function):
        try:
            return timing.compile_call(function, args)
        except Exception:  # any refusal of the compiler: the configuration is skipped, counted
            return None

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(attempt, functions))


def collect_layout(collection: str, program: tuple, options: argparse.Namespace) -> dict:
    """Measure one program's layout configurations; arrays of the schema plus ``info``."""
    name, function, args = program
    rng = _generator(collection, name, options)
    traced = jaxprs.trace(name, function, args)
    module = jaxprs.hlo_module(jaxprs.unconstrained(traced), traced.args)
    equations, nodes = jaxprs.configurable_nodes(traced, module)
    pools = [layouts.layout_pool(traced.operations[e], rng) for e in equations]
    sizes = [len(p) for p in pools]
    calls: dict[tuple, object] = {}

    def columns(row) -> np.ndarray:
        return np.stack([pool[code] for pool, code in zip(pools, row)])

    def compiled(rows) -> list:
        functions = []
        for row in rows:
            full = np.full((len(traced.operations), 18), -1)
            full[equations] = columns(row)
            functions.append(jaxprs.constrained(traced, full))
        return compile_all(functions, traced.args, options.jobs)

    def compile_new(rows) -> None:
        fresh = [r for r in dict.fromkeys(map(tuple, rows.tolist())) if r not in calls]
        calls.update(zip(fresh, compiled(fresh)))

    def evaluate(rows) -> np.ndarray:
        compile_new(rows)
        runtimes = np.full(len(rows), np.iinfo(np.int64).max)
        good = [i for i, row in enumerate(rows.tolist()) if calls[tuple(row)]]
        if good:
            runnable = [calls[tuple(rows[i].tolist())] for i in good]
            runtimes[good] = timing.quick_runtimes(runnable, rng)
        return runtimes

    if collection.endswith(":random"):
        tried = layouts.random_configs(sizes, options.configs, rng)
        again = rng.permutation(np.arange(1, len(tried)))[: TWICE - 1]
        tried = np.concatenate([tried, tried[:1], tried[again]])
    else:
        tried = layouts.search_configs(sizes, options.configs, evaluate, rng)
    compile_new(tried)
    rows = [row for row in map(tuple, tried.tolist()) if calls[row]]
    first = {row: i for i, row in reversed(list(enumerate(rows)))}
    repeated = [i for i, row in enumerate(rows) if first[row] != i]
    run = [calls[row] for row in rows]
    for i, call in zip(repeated, compiled([rows[i] for i in repeated])):
        run[i] = call or run[i]  # a repeat is an executable of its own
    if not run:
        raise ProgramError(f"{name}: no configuration compiled")
    blocks, rounds = timing.measure(run, rng, options.seconds, options.enough_tau)
    arrays = module_graph(module, name) | {
        "node_config_ids": nodes,
        "node_config_feat": np.stack([columns(row) for row in rows]).astype(np.float32),
        "config_runtime": timing.robust_runtime(blocks),
        "config_runtime_rounds": blocks,
    }
    info = {
        "distinct": len(first),
        "failed_to_compile": len(tried) - len(rows),
        "loops_left_alone": traced.loops,
        "operations_left_alone": len(traced.operations) - len(nodes),
    }
    return arrays | {"info": info | record.quality(blocks, rounds)}


def collect_tile(collection: str, program: tuple, options: argparse.Namespace) -> dict:
    """Measure one kernel's tile configurations; arrays of the schema plus ``info``.

    The normalizer is the runtime of the untiled kernel, timed in the same rounds. It is no
    configuration itself: on a CPU it would nearly always win (73 of 85 kernels), whereas tiles
    of the release must fit in fast memory, so that a big kernel has no such choice.
    """
    name, function, args, tiling = program
    rng = _generator(collection, name, options)
    jaxprs.check_result(name, function, args)
    count = min(options.configs, TILE_CONFIGS)
    tried = tiles.tile_configs(tiling, args, count, rng, untiled=False)
    if len(tried) < 2:
        raise ProgramError(f"{name}: too small to be cut into tiles")
    tried = np.concatenate([tried, tried[rng.permutation(len(tried))[:TWICE]]])
    device = tuple(map(jax.device_put, args))
    functions = [function, *(tiles.blocked(function, tiling, t) for t in tried)]
    untiled, *compiled = compile_all(functions, device, options.jobs)
    good = [i for i, call in enumerate(compiled) if call]
    if not good or not untiled:
        raise ProgramError(f"{name}: the compiler refuses it")
    run = [compiled[i] for i in good]
    blocks, rounds = timing.measure([untiled, *run], rng, options.seconds, options.enough_tau)
    normalizer, runtime = np.split(timing.robust_runtime(blocks), [1])
    arrays = module_graph(jaxprs.hlo_module(function, args), name)
    del arrays["node_splits"]
    arrays |= {
        "config_feat": tiles.config_feat(tiling, args, tried[good]),
        "config_runtime": runtime,
        "config_runtime_normalizers": np.repeat(normalizer, len(runtime)),
        "config_runtime_rounds": blocks[1:],
    }
    info = {
        "distinct": len(np.unique(tried[good], axis=0)),
        "failed_to_compile": len(tried) - len(good),
    }
    return arrays | {"info": info | record.quality(blocks[1:], rounds)}


def _generator(collection: str, name: str, options: argparse.Namespace) -> np.random.Generator:
    """Random numbers of a graph's own: no other program changes what is drawn for it."""
    return np.random.default_rng([options.seed, zlib.crc32(f"{collection}:{name}".encode())])


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code: 1 when a program could not be collected."""
    options = parse(argv)
    timing.single_thread(options.quick_compile)
    try:
        module = load_programs(options.programs)
        todo = list(work(module, options.programs, options.collections, options.only))
    except DataError as error:
        return fail(error)
    if not todo:
        wanted = ", ".join(options.collections)
        named = "" if options.only == "*" else f" named {options.only}"
        return fail(f"{options.programs}: nothing{named} to measure for {wanted}")
    failed: dict[str, None] = {}
    bar = progress(todo, unit="graph")
    for collection, split, program in bar:
        name = program[0]
        if name in failed or (options.resume and record.finished(options.out, collection, name)):
            continue
        bar.set_description(f"{collection} {name}")
        collect = collect_tile if collection == TILE_COLLECTION else collect_layout
        try:
            arrays = collect(collection, program, options)
        except Exception as error:  # whatever a program of the user's does, the others go on
            named = isinstance(error, ProgramError)
            fail(error if named else f"{name}: {jaxprs.reason(error)}")
            failed[name] = None
            continue
        record.write(options.out, collection, split, name, arrays, options)
        jax.clear_caches()  # hundreds of executables a graph
    left = sum(program[0] not in failed for _, _, program in todo)
    print(f"{left} graphs of {options.programs} are measured; see {options.out}/measurements.json")
    if failed:
        return fail(f"{len(failed)} not collected: {', '.join(failed)}")
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options; see --help."""
    doc = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(prog="python -m utils.xla.collect", description=doc[0])
    parser.add_argument("programs", type=Path, metavar="PROGRAMS.py", help="defines programs()")
    parser.add_argument(
        "--out", type=folder_path, required=True, metavar="DIR", help="where files go"
    )
    every = ",".join(COLLECTIONS)
    parser.add_argument(
        "--collections", default=every, help=f"comma separated (default: {every})"
    )
    parser.add_argument(
        "--configs", type=at_least(2), default=160,
        help="distinct configurations a graph (160; tiles 32 at most); a few are measured twice",
    )  # fmt: skip
    parser.add_argument("--seed", type=at_least(0), default=0, help="of all random draws (0)")
    parser.add_argument("--resume", action="store_true", help="skip graphs that are finished")
    parser.add_argument("--only", default="*", help="names to measure, such as 'attention.*'")
    parser.add_argument("--seconds", type=float, default=12, help="timing of a graph at most (12)")
    parser.add_argument(
        "--enough-tau", type=float, default=timing.REPEATABLE,
        help="stop timing a graph when two halves of its rounds agree this well (0.9)",
    )  # fmt: skip
    parser.add_argument("--jobs", type=at_least(1), default=2, help="threads that compile (2)")
    parser.add_argument(
        "--quick-compile", action="store_true",
        help="compile with XLA's older, faster emitters, which rank layouts differently",
    )
    parser.add_argument(
        "--min-tau", type=float, default=0.5,
        help="leave a graph out when two halves of its rounds agree less than this (0.5)",
    )  # fmt: skip
    options = parser.parse_args(argv)
    options.collections = [c.strip() for c in options.collections.split(",") if c.strip()]
    options.collections = options.collections or list(COLLECTIONS)
    unknown = [c for c in options.collections if c not in COLLECTIONS]
    if unknown:
        parser.error(f"unknown collection {unknown[0]!r}; there are {', '.join(COLLECTIONS)}")
    if not options.seconds > 0:
        parser.error("--seconds must be positive")
    return options


if __name__ == "__main__":
    run_command(main, "the same command with --resume goes on")
