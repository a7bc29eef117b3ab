"""How much of a job fits into a time and a memory budget, and a list of what was left out.

Times are guesses from the sizes in the files' headers, put right by what was measured so far on
the machine at hand (`Budget.pace`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field

from utils.cost import resident_mb
from utils.dataset import GraphFile
from utils.npz import open_npz, read_headers

# Seconds on one core of 2024, sizes in bytes: only their proportions have to be about right.
SECONDS_A_FILE = 0.02
SECONDS_A_CHECK = 0.004  # of headers and small arrays
SECONDS_A_NODE = 2e-4  # statistics and message passing
SECONDS_A_CONFIG = 2e-5, 2e-7  # features and scores: fixed, and for each configurable node
SECONDS_A_ROW = 4e-4  # of training one ranker
SECONDS_A_FIT = 1.0
SECONDS_A_CEILING = 1.0
BYTES_A_CONFIG = 12_000  # while features are made: some 250 columns, several float64 copies
BYTES_A_ROW = 5_000  # while trees are trained
BYTES_A_TERM = 100, 5  # of the sums behind cost tables; terms for each configurable node
BYTES_A_NODE = 12_000  # NetworkX and the propagated columns
TRUST = 1.0  # seconds of guessed work after which measurements count as much as the guess
MARGIN = 1.3  # on everything that has to be done
FEWEST = 20  # configurations of a graph below which training on fewer graphs is better


@dataclass(frozen=True)
class Size:
    """Numbers of nodes, configurations and configurable nodes (0 for a tile kernel)."""

    nodes: int
    configs: int
    width: int

    @property
    def seconds(self) -> float:
        """A guess: reading the file, its features and scores."""
        fixed, each = SECONDS_A_CONFIG
        configs = self.configs * (fixed + each * self.width)
        return SECONDS_A_FILE + SECONDS_A_NODE * self.nodes + configs

    @property
    def bytes(self) -> int:
        """A guess: the coded graph, with the copies on the way, before any feature."""
        return 6 * self.configs * (self.width + 24) + BYTES_A_NODE * self.nodes


def size_of(file: GraphFile) -> Size:
    """The size of a graph from the headers of its file."""
    with open_npz(file.path) as archive:
        headers = read_headers(file.path, archive)
        width = 0 if file.tile else headers["node_config_ids"].shape[0]
        return Size(headers["node_opcode"].shape[0], headers["config_runtime"].shape[0], width)


@dataclass
class Budget:
    """Seconds since `start` and bytes of resident memory that the process may use.

    `clock` and `resident_mb` can be replaced to test what happens when they run out.
    """

    seconds: float
    memory: float
    start: float | None = None
    clock: Callable[[], float] = time.monotonic
    resident_mb: Callable[[], float | None] = resident_mb
    left_out: list[str] = field(default_factory=list)
    guessed: float = 0.0
    measured: float = 0.0

    def __post_init__(self) -> None:
        self.start = self.clock() if self.start is None else self.start

    def left(self) -> float:
        """Seconds that are left; negative when the time is over."""
        return self.start + self.seconds - self.clock()

    def free(self) -> float:
        """Bytes that are left. Where the system doesn't say what is used, half of all."""
        used = self.resident_mb()
        return self.memory / 2 if used is None else self.memory - used * 2**20

    @property
    def pace(self) -> float:
        """Seconds that a guessed second takes here."""
        return (TRUST + self.measured) / (TRUST + self.guessed)

    @contextmanager
    def timed(self, guess: float):
        """Compare the time of a block with its guess."""
        begin = self.clock()
        yield
        self.measured += self.clock() - begin
        self.guessed += guess

    def needs(self, sizes: Iterable[Size]) -> float:
        """Seconds to set aside for scoring graphs of these sizes."""
        return MARGIN * self.pace * sum(size.seconds for size in sizes)

    def leave_out(self, what: str) -> None:
        """Note, and print at once, that something was not done in full."""
        self.left_out.append(what)
        print(f"  left out: {what}")

    def at_once(self) -> int:
        """Configurations of a graph whose features fit into half of the free memory."""
        return max(100, int(self.free() / 2 / BYTES_A_CONFIG))

    def fits(self, size: Size) -> bool:
        """Is there memory to read a graph of this size?"""
        return size.bytes < 0.8 * self.free()

    def rows(self, seconds: float, width: float = 0.0) -> int:
        """Training rows for which some seconds and the free memory are enough.

        width: configurable nodes of a graph; with any, cost tables are trained as well.
        """
        fits = 2 if width else 1
        in_time = (seconds / (MARGIN * self.pace * fits) - SECONDS_A_FIT) / SECONDS_A_ROW
        each = BYTES_A_ROW + BYTES_A_TERM[0] * BYTES_A_TERM[1] * width
        return max(0, int(min(in_time, 0.6 * self.free() / each)))


def peak_gb() -> float | None:
    """The largest resident memory of this process so far, in GB; None where the system has no
    /proc."""
    try:
        with open("/proc/self/status") as stream:
            lines = [line.split() for line in stream]
    except OSError:
        return None
    return next((int(line[1]) / 2**20 for line in lines if line[0] == "VmHWM:"), None)
