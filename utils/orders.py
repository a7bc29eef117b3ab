"""Orders of a tensor's dimensions, from minor to major, and what it takes to turn one into another.

An order is a tuple of dimension numbers; a shape is a tuple of sizes. Row-major is (r-1, .., 0).
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd

Order = tuple[int, ...]

LINE_BYTES = 64  # of a cache line
L1_LINES, L1_WAYS, L1_SPAN = 512, 8, 4096  # 32 KiB: lines, ways of a set, bytes to the same set
# What is said of a copy. It is written in order; how does it read?
COPY_KINDS = ("any", "unit", "near", "far", "far_large", "far_once", "far_conflict")


def row_major(shape: tuple) -> Order:
    return tuple(range(len(shape)))[::-1]


def without_units(order: Order, shape: tuple) -> Order:
    """The order of the dimensions that are larger than 1: the others move no data."""
    return tuple(d for d in order if shape[d] > 1)


def common_factors(a: tuple, b: tuple) -> list[tuple[int, int, int]] | None:
    """Dimensions, major to minor, into which both shapes of a reshape can be split.

    (size, dimension of a, dimension of b) of each; None where a boundary of one shape does not
    divide the next of the other.
    """
    ends_a, ends_b = _row_major_ends(a), _row_major_ends(b)
    ends = sorted({1, *ends_a, *ends_b})
    factors = []
    for low, high in zip(ends, ends[1:]):
        if high % low:
            return None
        owners = (next(d for d in range(len(e))[::-1] if low < e[d]) for e in (ends_a, ends_b))
        factors.append((high // low, *owners))
    return factors[::-1]


def _row_major_ends(shape: tuple) -> list[int]:
    """Of each dimension the elements that it and all more minor ones hold."""
    ends, held = [], 1
    for size in shape[::-1]:
        held *= size
        ends.append(held)
    return ends[::-1]


@lru_cache(maxsize=1 << 16)
def bitcast_order(source: tuple, target: tuple, order: Order) -> Order | None:
    """The order of `target` that makes a reshape from `source` in `order` move nothing.

    None where there is none.
    """
    factors = common_factors(source, target)
    if factors is None:
        return None
    split = _split(factors, order, 1)
    result: list[int] = []
    while split:
        d = factors[split[0]][2]
        own = [i for i in range(len(factors))[::-1] if factors[i][2] == d]
        if split[: len(own)] != own:
            return None
        result.append(d)
        split = split[len(own) :]
    return (*result, *(d for d in row_major(target) if d not in result))


def _split(factors: list[tuple[int, int, int]], order: Order, side: int) -> list[int]:
    """Factors from minor to major when side 1 (source) or 2 (target) has this order."""
    return [i for d in order for i in range(len(factors))[::-1] if factors[i][side] == d]


@lru_cache(maxsize=1 << 16)
def copy_kind(source: Order, target: Order, shape: tuple, width: float) -> tuple[bool, ...]:
    """Which of COPY_KINDS a copy from one order to another of a tensor is; none: they are equal.

    width: bytes of an element. unit: the innermost loop reads neighbours. near: several elements
    of a cache line, far: one; far_large: the loop reads more lines than the first cache holds;
    far_once: the next loop does not come back to these lines; far_conflict: they share too few
    sets of the cache to stay there until it does.
    """
    source, target = without_units(source, shape), without_units(target, shape)
    if source == target:
        return (False,) * len(COPY_KINDS)
    stride, held = {}, 1
    for d in source:
        stride[d] = held
        held *= shape[d]
    step, lines = stride[target[0]] * width, shape[target[0]]
    unit, far = stride[target[0]] == 1, step >= LINE_BYTES
    once = len(target) < 2 or stride[target[1]] > 1
    room = L1_WAYS * (L1_SPAN // gcd(int(step), L1_SPAN))
    return (
        True, unit, not unit and not far, not unit and far,
        not unit and far and lines > L1_LINES, not unit and far and once,
        not unit and far and lines > room,
    )  # fmt: skip


def reshape_kind(
    source: Order, target: Order, source_shape: tuple, target_shape: tuple, width: float
) -> tuple[bool, ...]:
    """`copy_kind` of a reshape from one order of its operand to one of its output."""
    factors = common_factors(source_shape, target_shape)
    if factors is None:  # no common order: read and written in row-major, or copied to it
        copied = source != row_major(source_shape) or target != row_major(target_shape)
        return (copied, *(False,) * (len(COPY_KINDS) - 1))
    orders = (tuple(_split(factors, o, side)) for side, o in ((1, source), (2, target)))
    return copy_kind(*orders, tuple(size for size, _, _ in factors), width)
