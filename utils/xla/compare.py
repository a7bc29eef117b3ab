"""Two programs side by side: the same values, the same code, and how much faster one of them is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import trim_mean

from utils.xla import timing

COPIES = 2  # executables of either program: equal code in other places of memory differs
TOLERANCE = 0.3  # roots of a float type's epsilon, of the largest value: 1e-4 for float32


class Interval(NamedTuple):
    """An estimate and its 95% bootstrap interval."""

    mid: float
    low: float
    high: float


def compile_code(function: Callable, args: tuple) -> tuple[Callable[[], object], str]:
    """What runs `function(*args)` once, and the code that it became, free of names."""
    compiled = jax.jit(lambda *given: function(*given)).lower(*args).compile()
    return lambda: jax.block_until_ready(compiled(*args)), code_of(compiled.as_text())


def code_of(text: str) -> str:
    """Optimized HLO without places in source files, and with names replaced by numbers."""
    text = text[re.search(r"^(%|ENTRY)", text, re.MULTILINE).start() :]
    text = re.sub(r"(, )?metadata=\{[^{}]*\}", "", text)
    names: dict[str, str] = {}

    def number(found: re.Match) -> str:
        return names.setdefault(found[0].lstrip("%"), f"%{len(names)}")

    return re.sub(r"%[\w.\-]+|[\w.\-]+(?=: )", number, text)


def differs(got: object, want: object) -> str | None:
    """None where two results are the same but for rounding, else what is not, in a line.

    Whole numbers and truth values must be equal; floats may differ a little, see TOLERANCE.
    """
    if jax.tree.structure(got) != jax.tree.structure(want):
        return "another structure"
    for i, (x, y) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want))):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"result {i} is {x.dtype}{list(x.shape)}, not {y.dtype}{list(y.shape)}"
        allowed = 0.0
        if jnp.issubdtype(x.dtype, jnp.inexact):
            allowed = TOLERANCE * float(jnp.finfo(x.dtype).eps) ** 0.5
            wide = np.complex128 if x.dtype.kind == "c" else np.float64
            x, y = np.asarray(x).astype(wide), np.asarray(y).astype(wide)
        x, y = np.asarray(x), np.asarray(y)
        same = (x == y) | ((x != x) & (y != y))  # infinities, and NaN in both
        if allowed:
            largest = np.abs(y, where=np.isfinite(y), out=np.zeros(y.shape)).max(initial=0.0)
            with np.errstate(invalid="ignore"):
                same |= np.abs(x - y) <= allowed * largest
        if not same.all():
            return f"result {i}: {(~same).sum()} of {same.size} values differ"
    return None


def compare(
    original: Callable, tuned: Callable, args: tuple, rng: np.random.Generator, seconds: float
) -> tuple[Interval, Interval, Interval]:
    """Runtimes (ns) of both and how many times as fast `tuned` is, from fresh executables and
    fresh rounds: the winner of a choice looks better in the rounds that chose it."""
    functions = [original] * COPIES + [tuned] * COPIES
    calls = [compile_code(function, args)[0] for function in functions]
    blocks, _ = timing.measure(calls, rng, seconds, enough=np.inf, rounds=2000)
    return bootstrap(blocks[:COPIES], blocks[COPIES:], rng)


def bootstrap(
    default: np.ndarray, tuned: np.ndarray, rng: np.random.Generator, draws: int = 4000
) -> tuple[Interval, Interval, Interval]:
    """Runtimes of both and default / tuned, from blocks of rounds int64 [copies, blocks] (ns).

    Block i of one was measured between the rounds of block i of the other, so both are drawn
    together.
    """
    count = default.shape[1]
    drawn = np.vstack([np.arange(count), rng.integers(count, size=(draws, count))])
    runtime = [trim_mean(x.mean(0)[drawn], timing.TRIM, axis=1) for x in (default, tuned)]
    parts = (*runtime, runtime[0] / runtime[1])
    bounds = [np.quantile(x[1:], (0.025, 0.975)).tolist() for x in parts]
    return tuple(Interval(float(x[0]), *bound) for x, bound in zip(parts, bounds))


def timed(default: Interval, tuned: Interval, speedup: Interval, what: str) -> list[str]:
    """The lines of a comparison; `what` names the tuned one."""
    shown = [[f"{x / 1000:,.1f}" for x in interval] for interval in (default, tuned)]
    (d, d_low, d_high), (t, t_low, t_high) = shown
    own = "the compiler's own choice"
    return [
        f"  {own:<26}{d:>10} us  [{d_low}, {d_high}]",
        f"  {what:<26}{t:>10} us  [{t_low}, {t_high}]",
        f"  {speedup.mid:.3f} times as fast, 95% interval [{speedup.low:.3f}, {speedup.high:.3f}]",
    ]
