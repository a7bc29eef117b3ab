"""Tile configurations of a kernel, and the kernel run tile by tile.

A kernel is a function of arrays with one result. Its ``Tiling`` names every dimension by a letter,
like einsum: ``mk,kn,n->mn``. A letter of the result is an axis that can be cut into tiles, an
upper case letter and a letter that the result lacks (a contracted dimension) stay whole. A
configuration is one tile size for each axis; ``blocked`` runs it as a loop over the tiles.

``config_feat`` writes configurations in the columns of the release. There, the bounds of a tile
stand from the most major to the most minor dimension of the array in memory. (Seen in the
release: a copy whose result is [32, 5, 5, 256] with layout {3,0,2,1}, in memory 5 x 5 x 32 x 256,
has bounds of up to 5, 5, 4, 2; the two minor dimensions count in the TPU's registers of 8 x 128.)
Our results are row-major, so that order is the order of the dimensions, and a bound counts
elements, because a CPU has no such registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from utils.schema import MAX_RANK, TILE_COLUMNS

MAX_TILES = 512  # more turns of the loop measure nothing but the loop
MIN_TILE_WORK = 512  # multiply-adds or elements in one tile: below, all tiles cost the same
MAX_REPEATED = 3.0  # elements computed (the last tiles overlap), relative to the untiled kernel
MIN_MINOR = 16  # of the axes along which code is vectorized; thinner tiles are up to 100x slower
ATTEMPTS = 100  # draws per wanted configuration before a small space counts as exhausted


class Window(NamedTuple):
    """How one axis of the result reads the first argument: a convolution's or pool's window."""

    size: int
    stride: int = 1
    low: int = 0  # padding before
    high: int = 0  # padding after
    dilation: int = 1

    def reads(self, outputs: int) -> int:
        """Elements of the padded argument that this many neighbouring outputs read."""
        return (outputs - 1) * self.stride + (self.size - 1) * self.dilation + 1


@dataclass(frozen=True)
class Tiling:
    """What can be cut in a kernel, and how its arguments follow.

    axes: a letter per dimension, ``arguments->result``; upper case: never cut.
    windows: for letters that the first argument reads through a window.
    fill: the value of that window's padding (-inf for a maximum).
    kernel: the second argument is a convolution's kernel (it gives ``kernel_bounds``).
    summed: letter of a contracted dimension that is cut too; its tiles divide it evenly.
    core, finish: a kernel with windows or ``summed`` is ``finish(core(*args), *args)``, with a
        ``core`` that does not pad; the results of ``core`` are summed over ``summed``.
    """

    axes: str
    windows: Mapping[str, Window] = field(default_factory=dict)
    fill: float = 0.0
    kernel: bool = False
    summed: str = ""
    core: Callable | None = None
    finish: Callable | None = None

    @property
    def arguments(self) -> list[str]:
        return self.axes.split("->")[0].split(",")

    @property
    def result(self) -> str:
        return self.axes.split("->")[1]

    @property
    def columns(self) -> str:
        """The letters of a configuration, in order: those of the result, then ``summed``."""
        return self.result + self.summed


def axis_sizes(tiling: Tiling, args: Sequence) -> dict[str, int]:
    """Letter -> size; of a letter with a window, the size in the result.

    Raises ValueError where the arguments do not fit the letters.
    """
    if [len(letters) for letters in tiling.arguments] != [np.ndim(a) for a in args]:
        ranks = [np.ndim(a) for a in args]
        raise ValueError(f"tiling {tiling.axes!r} does not fit arguments of ranks {ranks}")
    sizes: dict[str, int] = {}
    for number, (letters, arg) in enumerate(zip(tiling.arguments, args)):
        for letter, size in zip(letters, np.shape(arg)):
            window = tiling.windows.get(letter) if number == 0 else None
            if window:
                size = (size + window.low + window.high - window.reads(1)) // window.stride + 1
            if sizes.setdefault(letter, size) != size:
                raise ValueError(
                    f"tiling {tiling.axes!r}: {letter!r} is {sizes[letter]} and {size}"
                )
    if missing := set(tiling.columns) - set(sizes):
        raise ValueError(f"tiling {tiling.axes!r}: no argument has {', '.join(sorted(missing))}")
    return sizes


def _candidates(size: int, smallest: int, even: bool) -> list[list[int]]:
    """Tile sizes in [smallest, size) by kind: divisors, and where tiles may overlap powers of
    two, multiples of 8 and of 128, and any size."""
    kinds = [[t for t in range(1, size) if size % t == 0]]
    if not even:
        kinds += [
            [2**k for k in range(size.bit_length())],
            list(range(8, size, 8)),
            list(range(128, size, 128)),
            list(range(1, size)),
        ]
    kinds = [[t for t in kind if smallest <= t < size] for kind in kinds]
    return [kind for kind in kinds if kind]


def tile_configs(
    tiling: Tiling, args: Sequence, n: int, rng: np.random.Generator, untiled: bool = True
) -> np.ndarray:
    """Distinct tile sizes, int64 [c, len(tiling.columns)] with c <= n.

    Row 0 is the untiled configuration (the sizes of the result, ``summed`` whole), unless
    ``untiled`` is False: then no row is. Each axis stays whole or takes a size of a kind drawn at
    random. Fewer than ``n`` come back where the kernel does not have that many.
    """
    sizes = axis_sizes(tiling, args)
    full = tuple(sizes[a] for a in tiling.columns)
    minor = tiling.result[-1] + tiling.summed
    kinds = [
        _candidates(sizes[a], MIN_MINOR if a in minor else 1, even=a in tiling.summed)
        if a.islower()
        else []
        for a in tiling.columns
    ]
    whole = prod(size for a, size in sizes.items() if a not in tiling.columns)
    found = {full: None}  # a dict keeps the order
    for _ in range(ATTEMPTS * n):
        if len(found) == n + (not untiled):
            break
        tile = []
        for kind, size in zip(kinds, full):
            if not kind or rng.random() < 0.25:
                tile.append(size)
            else:
                tile.append(int(rng.choice(kind[rng.integers(len(kind))])))
        tiles = prod(-(-size // t) for size, t in zip(full, tile))
        repeated = tiles * prod(tile) / prod(full)
        work = prod(tile) * whole
        if tiles <= MAX_TILES and repeated <= MAX_REPEATED and work >= MIN_TILE_WORK:
            found.setdefault(tuple(tile))
    return np.array(list(found), dtype=np.int64).reshape(-1, len(full))[0 if untiled else 1 :]


def blocked(function: Callable, tiling: Tiling, tile: Sequence[int]) -> Callable:
    """The same function, computed tile by tile: the last axis of the result runs fastest.

    The last tile of an axis starts early enough to be whole, so some elements are computed twice.
    The untiled configuration gives ``function`` itself.
    """

    def run(*args):
        sizes = axis_sizes(tiling, args)
        if tuple(tile) == tuple(sizes[a] for a in tiling.columns):
            return function(*args)
        length = sizes | dict(zip(tiling.columns, map(int, tile)))
        shape = jax.eval_shape(function, *args)
        args = (_pad(args[0], tiling), *args[1:])
        grid = [-(-sizes[a] // length[a]) for a in tiling.result]

        def one_tile(i, result):
            start = {}
            for axis, tiles in zip(reversed(tiling.result), reversed(grid)):
                start[axis] = jnp.minimum(i % tiles * length[axis], sizes[axis] - length[axis])
                i //= tiles
            value = _one_tile(function, tiling, args, sizes, length, start)
            return lax.dynamic_update_slice(result, value, [start[a] for a in tiling.result])

        return lax.fori_loop(0, prod(grid), one_tile, jnp.zeros(shape.shape, shape.dtype))

    return run


def _one_tile(function, tiling: Tiling, args, sizes, length, start):
    """One tile of the result; the tile's first element is at ``start``."""
    whole = length | {a: sizes[a] for a in tiling.summed}
    tiles = _cut(tiling, args, whole, start)
    if tiling.core is None:
        return function(*tiles)
    steps = prod(sizes[a] // length[a] for a in tiling.summed)
    if steps == 1:
        total = tiling.core(*tiles)
    else:

        def add(i, total):
            part = {tiling.summed: i * length[tiling.summed]}
            return total + tiling.core(*_cut(tiling, args, length, start | part))

        shape = jax.eval_shape(tiling.core, *tiles)
        total = lax.fori_loop(0, steps, add, jnp.zeros(shape.shape, shape.dtype))
    return tiling.finish(total, *tiles) if tiling.finish else total


def _cut(tiling: Tiling, args, length: Mapping[str, int], start: Mapping) -> list:
    """The part of every argument that a tile reads; the first argument is padded already."""
    parts = []
    for number, (letters, arg) in enumerate(zip(tiling.arguments, args)):
        begin, extent = [], []
        for letter in letters:
            window = tiling.windows.get(letter) if number == 0 else None
            begin.append(start.get(letter, 0) * (window.stride if window else 1))
            extent.append(window.reads(length[letter]) if window else length[letter])
        parts.append(arg if tuple(extent) == arg.shape else lax.dynamic_slice(arg, begin, extent))
    return parts


def _pad(arg, tiling: Tiling):
    windows = [tiling.windows.get(a, Window(1)) for a in tiling.arguments[0]]
    if not any(w.low or w.high for w in windows):
        return arg
    return jnp.pad(arg, [(w.low, w.high) for w in windows], constant_values=tiling.fill)


def config_feat(tiling: Tiling, args: Sequence, tiles: np.ndarray) -> np.ndarray:
    """Tile sizes int [c, len(tiling.columns)] in the schema's columns, float32 [c, 24].

    ``output_bounds`` is the tile of the result; ``kernel_bounds`` the part of the kernel that a
    tile uses at once (convolutions only); ``input_bounds`` is 0, since it follows from the others.
    """
    sizes = axis_sizes(tiling, args)
    column = {a: np.asarray(tiles)[:, i] for i, a in enumerate(tiling.columns)}
    bounds = {
        "output": [column[a] for a in tiling.result],
        "kernel": [],
    }
    if tiling.kernel:
        bounds["kernel"] = [
            column.get(a, np.full(len(tiles), sizes[a])) for a in tiling.arguments[1]
        ]
    feat = np.zeros((len(tiles), len(TILE_COLUMNS)), dtype=np.float32)
    for part, lists in bounds.items():
        if not lists:
            continue  # an empty list has sum 0 and, unlike in node_feat, product 0
        at = TILE_COLUMNS.index(f"{part}_bounds_0")
        values = np.stack(lists, axis=1).astype(np.int64)
        feat[:, at : at + min(MAX_RANK, len(lists))] = values[:, :MAX_RANK]
        feat[:, TILE_COLUMNS.index(f"{part}_bounds_sum")] = values.sum(axis=1)
        feat[:, TILE_COLUMNS.index(f"{part}_bounds_product")] = values.prod(axis=1)
    return feat
