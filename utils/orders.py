"""Orders of a tensor's dimensions, from minor to major, and what it takes to turn one into another.

An order is a tuple of dimension numbers; a shape is a tuple of sizes. Row-major is (r-1, .., 0).
"""

from __future__ import annotations

from functools import lru_cache

Order = tuple[int, ...]

LINE_BYTES = 64  # of a cache line


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
    if 0 in a or 0 in b:
        return None
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
