"""Seconds and peak memory of a block of code."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Cost:
    """What a block took: wall-clock seconds, and the process's peak resident memory in MB.

    `peak_mb` is None where the system has no /proc (macOS, Windows).
    """

    seconds: float = 0.0
    peak_mb: float | None = None


@contextmanager
def measured(interval_s: float = 0.02) -> Iterator[Cost]:
    """Measure the block; memory is sampled every `interval_s` seconds from a second thread.

    The process's own peak counter never falls, so it can't tell one fit from the one before.
    """
    cost = Cost(peak_mb=resident_mb())
    done = threading.Event()

    def watch() -> None:
        while not done.wait(interval_s):
            cost.peak_mb = max(cost.peak_mb, resident_mb())

    watcher = threading.Thread(target=watch, daemon=True)
    if cost.peak_mb is not None:
        watcher.start()
    start = time.perf_counter()
    try:
        yield cost
    finally:
        cost.seconds = time.perf_counter() - start
        done.set()
        if cost.peak_mb is not None:
            watcher.join()
            cost.peak_mb = max(cost.peak_mb, resident_mb())


def resident_mb() -> float | None:
    """Resident memory of this process in MB; None where the system has no /proc."""
    try:
        with open("/proc/self/statm") as stream:
            pages = int(stream.read().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
