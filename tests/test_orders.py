"""Orders of dimensions: what a reshape can hand on, and how a copy reads."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.orders import (
    COPY_KINDS,
    bitcast_order,
    common_factors,
    copy_kind,
    reshape_kind,
    row_major,
    without_units,
)


def in_memory(shape, order) -> list[int]:
    """Row-major numbers of the elements of a tensor, as they lie in memory."""
    return np.arange(np.prod(shape)).reshape(shape).transpose(order[::-1]).ravel().tolist()


def kinds(*args) -> set[str]:
    return {name for name, here in zip(COPY_KINDS, copy_kind(*args)) if here}


def test_orders_by_hand():
    assert row_major((2, 3, 4)) == (2, 1, 0) and row_major(()) == ()
    assert without_units((2, 0, 1), (5, 1, 4)) == (2, 0)


def test_factors_of_a_reshape():
    assert common_factors((6, 4), (2, 12)) == [(2, 0, 0), (3, 0, 1), (4, 1, 1)]
    assert common_factors((6, 4), (4, 6)) is None


@given(st.lists(st.integers(2, 4), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_a_bitcast_moves_nothing(factors, random):
    def joined():
        cuts = [0, *sorted(random.sample(range(1, len(factors)), random.randrange(len(factors))))]
        ends = [*cuts[1:], len(factors)]
        return tuple(int(np.prod(factors[a:b])) for a, b in zip(cuts, ends))

    source, target = joined(), joined()
    order = tuple(random.sample(range(len(source)), len(source)))
    found = bitcast_order(source, target, order)
    ways = [
        p for p in itertools.permutations(range(len(target)))
        if in_memory(target, p) == in_memory(source, order)
    ]  # fmt: skip
    assert ([found] if found else []) == ways
    copied = [reshape_kind(order, p, source, target, 4.0)[0]
              for p in itertools.permutations(range(len(target)))]  # fmt: skip
    assert copied.count(False) == len(ways)


def test_units_do_not_keep_a_reshape_from_being_a_bitcast():
    assert bitcast_order((4, 1, 3), (12,), (1, 2, 0)) == (0,)
    assert bitcast_order((12,), (4, 1, 3), (0,)) == (2, 0, 1)


def test_how_a_copy_reads():
    assert kinds((1, 0), (1, 0), (8, 8), 4.0) == set()
    assert kinds((0, 1), (1, 0), (1, 8), 4.0) == set()  # nothing moves
    assert kinds((2, 1, 0), (2, 0, 1), (3, 4, 5), 4.0) == {"any", "unit"}
    assert kinds((1, 0), (0, 1), (4, 8), 4.0) == {"any", "near"}  # 32 bytes apart
    assert kinds((1, 0), (0, 1), (4, 16), 4.0) == {"any", "far"}  # 64: a line each
    # 256 rows, 256 bytes apart, lie in 16 of 64 sets of 8 lines: 128 of them stay
    assert kinds((1, 0), (0, 1), (256, 64), 4.0) == {"any", "far", "far_conflict"}
    assert kinds((1, 0), (0, 1), (128, 64), 4.0) == {"any", "far"}
    assert kinds((1, 0), (0, 1), (513, 33), 4.0) == {"any", "far", "far_large"}
    assert kinds((2, 1, 0), (0, 1, 2), (8, 16, 32), 4.0) == {"any", "far", "far_once"}


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_the_step_is_that_of_numpy(order):
    shape = (3, 5, 4)
    place = np.empty(60, int)
    place[in_memory(shape, (2, 0, 1))] = np.arange(60)  # where each element lies
    step = abs(int(np.diff(place[in_memory(shape, order)][:2])[0]))
    found = kinds((2, 0, 1), order, shape, 16.0)
    if order == (2, 0, 1):
        assert found == set()
    else:
        assert ("unit" in found, "near" in found, "far" in found) == (
            step == 1, 1 < step < 4, step >= 4)  # fmt: skip


def test_reshapes():
    def found(*args):
        return {name for name, here in zip(COPY_KINDS, reshape_kind(*args, 4.0)) if here}

    assert found((1, 0), (0,), (6, 4), (24,)) == set()
    assert found((0, 1), (0,), (6, 4), (24,)) == {"any", "near"}
    assert found((1, 0), (1, 0), (6, 4), (4, 6)) == set()  # row-major is always a bitcast
    assert found((0, 1), (1, 0), (6, 4), (4, 6)) == {"any"}
