"""Find layouts that make a JAX program faster on XLA:CPU, and write them as source to paste.

    python -m utils.xla.autotune PROGRAMS.py [--only NAME] [--budget SECONDS] [--top K] [--out DIR]
    python -m utils.xla.autotune PROGRAMS.py --check FILE [FILE ...]

PROGRAMS.py defines ``programs()`` as for utils.xla.collect. A cost-table model looks at thousands
of configurations; only the K most promising ones and the compiler's own choice are compiled and
measured, the winner twice. A run that finds nothing for a program removes what an earlier one
wrote. The model must come from data measured with the same compiler and processor: the faster and
the older emitters of XLA:CPU, for one, rank configurations differently.

--check measures a written file again, in this fresh process, against the original program.
"""

from __future__ import annotations

import argparse
import itertools
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np

from utils.command import at_least, fail, folder_path, run_command, shown
from utils.cost_rows import cost_rows, score_rows
from utils.cost_tables import CostTables, row_values
from utils.dataset import DataError
from utils.progress import progress
from utils.saved_models import RUNS, about, find_model, load_tables
from utils.xla import jaxprs, search, source, timing
from utils.xla.collect import load_programs, work
from utils.xla.compare import Interval, compare, compile_code, differs, timed
from utils.xla.jaxprs import ProgramError
from utils.xla.relayout import relaid

COLLECTIONS = ("layout:xla:random", "layout:nlp:random")  # their models have seen all densities
MODEL = "cost_tables"  # the kind of model that scores thousands of configurations at once
COMPILING, CHOOSING = 0.5, 0.5  # of the budget; of what is left when all is compiled


@dataclass(frozen=True)
class Tuned:
    """What tuning one program found, and what it cost."""

    name: str
    looked_at: int  # configurations that the model scored, the default among them
    search_s: float  # describing, scoring and searching
    compiled: int
    same_code: int  # of these became code that was there already
    wrong: int  # of these gave other values
    measured: int  # configurations, without the default
    default: Interval | None = None  # ns; None where there was nothing to measure
    tuned: Interval | None = None  # ns, of the fastest
    speedup: Interval | None = None  # default / tuned
    layouts: dict[int, tuple] | None = None  # of the fastest, see jaxprs.orders

    @property
    def faster(self) -> bool:
        return self.speedup is not None and self.speedup.low > 1


def candidates(
    program: jaxprs.Program, model: CostTables, rng: np.random.Generator
) -> tuple[Iterator[dict[int, tuple]], int]:
    """Layouts (see `jaxprs.orders`) that the model puts before the default, the best first, and
    how many configurations it looked at."""
    module = jaxprs.hlo_module(jaxprs.unconstrained(program), program.args)
    equations, nodes = jaxprs.configurable_nodes(program, module)
    pools = [search.choices(program.operations[e], rng) for e in equations]
    graph = search.program_graph(module, nodes, pools)
    rows = cost_rows(graph)
    value = row_values(model, rows)

    def score(codes: np.ndarray) -> np.ndarray:
        return score_rows(replace(graph, codes=np.asfortranarray(codes)), rows, value)

    codes, scores = search.search([len(p) for p in pools], score, rng)

    def layouts(row: int) -> dict[int, tuple]:
        full = np.full((len(program.operations), pools[0].shape[1]), -1)
        full[equations] = np.stack([pool[code] for pool, code in zip(pools, codes[row])])
        return jaxprs.orders(program, full)

    return map(layouts, search.ranked(codes, scores)), len(codes)


def compile_candidates(
    function: Callable, args: tuple, layouts: Iterator[dict], known: set[str],
    top: int, until: float, jobs: int,
) -> Iterator[tuple[dict, Callable | None]]:
    """(layouts, what runs them) until `top` became code that was not known, or the clock says
    `until`; None runs those that the compiler refuses or whose code is known."""
    def attempt(chosen):
        try:
            return compile_code(relaid(function, chosen), args)
        except Exception:  # any refusal of the compiler
            return None, ""

    new = 0
    with ThreadPoolExecutor(jobs) as pool:
        while new < top and time.monotonic() < until:
            batch = list(itertools.islice(layouts, jobs))
            if not batch:
                return
            for chosen, (call, code) in zip(batch, pool.map(attempt, batch)):
                fresh = call is not None and code not in known
                known.add(code)
                new += fresh
                yield chosen, call if fresh else None


def tune(
    name: str, function: Callable, args: tuple, model: CostTables, rng: np.random.Generator,
    budget: float = 60, top: int = 16, jobs: int = 2,
) -> Tuned:
    """Tune one program within about `budget` seconds. Raises ProgramError where it can't be."""
    begin = time.monotonic()
    program = jaxprs.trace(name, function, args)
    start = time.perf_counter()
    promising, looked_at = candidates(program, model, rng)
    search_s = time.perf_counter() - start
    args = jax.device_put(tuple(args))
    default, code = compile_code(function, args)
    want, until = default(), begin + COMPILING * budget
    compiled = list(compile_candidates(function, args, promising, {code}, top, until, jobs))
    new = [(layouts, call) for layouts, call in compiled if call]
    good = [(layouts, call) for layouts, call in new if differs(call(), want) is None][:top]
    counts = (name, looked_at, search_s, len(compiled), len(compiled) - len(new))
    found = Tuned(*counts, len(new) - len(good), len(good))
    if not good:
        return found
    left = max(1.0, begin + budget - time.monotonic())
    calls = [default, *(call for _, call in good)]
    blocks, _ = timing.measure(calls, rng, CHOOSING * left)
    layouts, _ = good[int(timing.robust_runtime(blocks)[1:].argmin())]
    left = max(1.0, begin + budget - time.monotonic())
    times = compare(function, relaid(function, layouts), args, rng, left)
    return replace(found, layouts=layouts, **dict(zip(("default", "tuned", "speedup"), times)))


def keep(found: Tuned, folder: Path) -> str:
    """Write the source of what was found; where nothing was, remove that of an earlier run, which
    no longer holds. Returns what to say of it."""
    path = source.source_path(folder, found.name)
    if found.faster:
        source.write_source(folder, found.name, found.layouts, found.speedup)
        return f"source: {path}"
    if path.exists():
        path.unlink()
        return f"removed {path} of an earlier run"
    return ""


def report(found: Tuned, kept: str = "") -> str:
    """What was found, in a few lines. kept: from `keep`."""
    lines = [
        f"{found.name}: {found.looked_at:,} configurations looked at in {found.search_s:.2f} s, "
        f"{found.compiled} compiled ({found.same_code} the same code as others, {found.wrong} "
        f"with other values), {found.measured} measured"
    ]
    if found.speedup is None:
        last = "  nothing to measure: the model puts nothing new before the default"
    else:
        lines += timed(found.default, found.tuned, found.speedup, "the fastest of the others")
        last = "  nothing beats the compiler's own choice"
        if found.faster:
            last = f"  {len(found.layouts)} operations have other layouts"
    return "\n".join([*lines, last + (f"; {kept}" if kept else "")])


def check(path: Path, programs: dict[str, tuple], rng: np.random.Generator, seconds: float) -> str:
    """Values and speed-up of a written file in this process. DataError when they don't fit."""
    module = source.load_source(path)
    if module.NAME not in programs:
        raise DataError(f"{path}: its program {module.NAME!r} is not in the programs file")
    _, function, args = programs[module.NAME]
    args = jax.device_put(tuple(args))
    try:
        got = jax.jit(module.tuned(function))(*args)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    problem = differs(got, jax.jit(function)(*args))
    if problem:
        raise DataError(f"{path}: {problem}")
    times = compare(function, module.tuned(function), args, rng, seconds)
    lines = timed(*times, "the layouts of the file")
    mid, low, high = module.SPEEDUP
    promised = f"  when it was written: {mid:.3f} [{low:.3f}, {high:.3f}]"
    return "\n".join([f"{module.NAME}: the same values", *lines, promised])


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code: 1 when a program or a file could not be done."""
    options = parse(argv)
    timing.single_thread()
    try:
        module = load_programs(options.programs)
        todo = list(work(module, options.programs, list(COLLECTIONS), options.only))
        needed = () if options.check else dict.fromkeys(collection for collection, *_ in todo)
        stems = {c: find_model(options.model, c, (MODEL,)) for c in needed}
        models = {c: load_tables(stem) for c, stem in stems.items()}
    except DataError as error:
        return fail(error)
    programs = {program[0]: program for *_, program in todo}
    failed = 0
    for path in options.check:
        try:
            print(check(path, programs, np.random.default_rng(options.seed), options.budget))
        except Exception as error:  # the other files go on
            named = isinstance(error, DataError)
            failed += fail(error if named else f"{path}: {jaxprs.reason(error)}")
    if options.check:
        return int(failed > 0)
    if not todo:
        named = "" if options.only == "*" else f" named {options.only}"
        return fail(f"{options.programs}: no program{named} to tune")
    for collection, stem in stems.items():
        trained = about(stem).get("collection", "an unknown collection")
        print(f"model for {collection}: {shown(stem)}, trained on {trained}", flush=True)
    for collection, _, program in progress(todo, unit="program"):
        name, *_ = program
        rng = np.random.default_rng([options.seed, zlib.crc32(name.encode())])
        try:
            _, function, args = program
            found = tune(name, function, args, models[collection], rng,
                         options.budget, options.top, options.jobs)  # fmt: skip
        except Exception as error:  # whatever a program of the user's does, the others go on
            named = isinstance(error, (ProgramError, DataError))
            failed += fail(error if named else f"{name}: {jaxprs.reason(error)}")
            continue
        print(report(found, keep(found, options.out)), flush=True)
        jax.clear_caches()
    return int(failed > 0)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options; see --help."""
    parser = argparse.ArgumentParser(
        prog="python -m utils.xla.autotune", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("programs", type=Path, nargs="?", metavar="PROGRAMS.py", help="defines programs()")
    add("--only", default="*", help="names to tune, such as 'attention.*'")
    add("--budget", type=float, default=60, metavar="SECONDS",
        help="seconds a program; half of them at most to compile (60)")  # fmt: skip
    add("--top", type=at_least(1), default=16, metavar="K", help="configurations to measure (16)")
    add("--model", type=Path, metavar="PATH",
        help=f"cost tables, or the folder of a run (default: {', else '.join(RUNS)})")  # fmt: skip
    add("--out", type=folder_path, default=Path("outputs/tuned"), metavar="DIR",
        help="where sources go (outputs/tuned)")  # fmt: skip
    add("--seed", type=at_least(0), default=0, help="of all random draws (0)")
    add("--jobs", type=at_least(1), default=2, help="threads that compile (2)")
    add("--check", type=Path, nargs="+", default=[], metavar="FILE",
        help="measure written sources again instead of tuning")  # fmt: skip
    options = parser.parse_intermixed_args(argv)
    if options.programs is None and len(options.check) > 1:  # --check FILE PROGRAMS.py
        options.programs = options.check.pop()
    if options.programs is None:
        parser.error("the following arguments are required: PROGRAMS.py")
    if not options.budget > 0:
        parser.error("--budget must be positive")
    return options


if __name__ == "__main__":
    run_command(main, "what was written is kept")
