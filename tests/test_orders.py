"""Orders of dimensions, and which of them a reshape can hand on."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from utils.orders import bitcast_order, common_factors, row_major, without_units


def in_memory(shape, order) -> list[int]:
    """Row-major numbers of the elements of a tensor, as they lie in memory."""
    return np.arange(np.prod(shape)).reshape(shape).transpose(order[::-1]).ravel().tolist()


def test_orders_by_hand():
    assert row_major((2, 3, 4)) == (2, 1, 0) and row_major(()) == ()
    assert without_units((2, 0, 1), (5, 1, 4)) == (2, 0)


def test_factors_of_a_reshape():
    assert common_factors((6, 4), (2, 12)) == [(2, 0, 0), (3, 0, 1), (4, 1, 1)]
    assert common_factors((6, 4), (4, 6)) is None
    assert common_factors((6, 0), (0,)) is None


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


def test_units_do_not_keep_a_reshape_from_being_a_bitcast():
    assert bitcast_order((4, 1, 3), (12,), (1, 2, 0)) == (0,)
    assert bitcast_order((12,), (4, 1, 3), (0,)) == (2, 0, 1)
