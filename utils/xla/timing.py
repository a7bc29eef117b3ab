"""Compile and time JAX programs: one thread, interleaved rounds, until the ranking repeats."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
from scipy.stats import kendalltau, trim_mean

BLOCKS = 8  # rounds are kept as eight blocks; round r belongs to block r % 8
TRIM = 0.2  # share of a block's visits left out at either end
REPEATABLE = 0.9  # two halves of the rounds agree at this Kendall's tau: enough rounds


def single_thread(quick_compile: bool = False) -> None:
    """Make XLA:CPU compute on the calling thread. Call before JAX runs anything.

    quick_compile: XLA's older emitters and one piece of code a program. They compile up to twice
    as fast, but rank the layouts of a program in another order than the compiler that users have:
    on the same 70 random configurations of six programs Kendall's tau between the two was .69,
    .61, .56, .53, -.40 and -.56 (the last two are recurrent networks). For trying things out only.
    """
    flags = os.environ.get("XLA_FLAGS", "").split() + ["--xla_cpu_multi_thread_eigen=false"]
    if quick_compile:
        flags += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
    os.environ["XLA_FLAGS"] = " ".join(dict.fromkeys(flags))
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if sys.platform == "linux":
        # Temporary buffers from the heap, never given back: page faults would be timed too.
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def compile_call(function: Callable, args: Sequence) -> Callable[[], object]:
    """Compile ``function`` for ``args``; the result runs it once, to the end, on each call."""
    compiled = jax.jit(function).lower(*args).compile()
    return lambda: jax.block_until_ready(compiled(*args))


def _visit(call: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


def block_runtimes(visits: np.ndarray) -> np.ndarray:
    """Runtime of each block, int64 [c, 8] (ns), from visits [c, rounds], rounds % 8 == 0.

    The trimmed mean of the block's rounds. A minimum repeats far worse on a machine that is
    shared: there a core runs at one speed while its neighbour idles and at another while it works,
    and the minimum asks how often a configuration met the rare fast moments. In one trial, 240
    rounds of 30 configurations, two halves agreed at Kendall's tau .88 (minima), .96 (lower
    quartiles and medians) and .99 (trimmed means).
    """
    blocks = visits.reshape(len(visits), -1, BLOCKS).swapaxes(1, 2)
    return np.rint(trim_mean(blocks, TRIM, axis=2)).astype(np.int64)


def robust_runtime(blocks: np.ndarray) -> np.ndarray:
    """The runtime of each configuration, int64 [c] (ns): the trimmed mean of its blocks [c, b]."""
    return np.rint(trim_mean(blocks, TRIM, axis=1)).astype(np.int64)


def repeatability(blocks: np.ndarray) -> float:
    """Kendall's tau between the runtimes from the even and from the odd blocks [c, 8]."""
    tau = kendalltau(robust_runtime(blocks[:, ::2]), robust_runtime(blocks[:, 1::2])).statistic
    return 0.0 if np.isnan(tau) else float(tau)


def measure(
    calls: Sequence[Callable[[], object]],
    rng: np.random.Generator,
    seconds: float,
    enough: float = REPEATABLE,
    rounds: int = 400,
) -> tuple[np.ndarray, int]:
    """Time all calls in interleaved random order, round after round, so that drift hits all.

    Stops when two halves of the rounds agree at Kendall's tau ``enough``, or after about
    ``seconds`` or ``rounds``. Returns the blocks int64 [c, 8] (ns) and the number of rounds, a
    multiple of 8.
    """
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    visits = np.empty((len(calls), 0), dtype=np.int64)
    try:
        if cores:
            os.sched_setaffinity(0, {max(cores)})  # this thread only: caches stay warm
        for call in calls:
            call()
        start = time.perf_counter()
        while True:
            more = np.zeros((len(calls), BLOCKS), dtype=np.int64)
            for column in more.T:
                for i in rng.permutation(len(calls)):
                    column[i] = _visit(calls[i])
            visits = np.concatenate([visits, more], axis=1)
            done, spent = visits.shape[1], time.perf_counter() - start
            blocks = block_runtimes(visits)
            if done >= rounds or spent * (1 + BLOCKS / done) > seconds:
                break
            if len(calls) > 2 and done >= 3 * BLOCKS and repeatability(blocks) >= enough:
                break
    finally:
        if cores:
            os.sched_setaffinity(0, cores)
    return blocks, done


def quick_runtimes(calls: Sequence[Callable[[], object]], rng: np.random.Generator) -> np.ndarray:
    """Rough runtimes int64 [c] (ns) that guide a search: medians of five interleaved rounds."""
    visits = np.zeros((len(calls), 5), dtype=np.int64)
    for call in calls:
        call()
    for column in visits.T:
        for i in rng.permutation(len(calls)):
            column[i] = _visit(calls[i])
    return np.median(visits, axis=1).astype(np.int64)
