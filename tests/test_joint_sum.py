import numpy as np
import pytest

from utils import joint_sum as module
from utils.joint_sum import join, joint_sum


def problem(seed, rows, configs=50):
    rng = np.random.default_rng(seed)
    codes = np.asfortranarray(np.stack([rng.integers(r, size=configs) for r in rows], 1), np.uint8)
    tables = [rng.standard_normal(r) for r in rows]
    ends = [(0, 1), (3, 1), (0, len(rows) - 1), (2, 4)]
    return codes, tables, {(i, j): rng.standard_normal((rows[i], rows[j])) for i, j in ends}


def naive(codes, tables, pairs):
    total = sum(table[codes[:, j]] for j, table in enumerate(tables))
    return total + sum(table[codes[:, i], codes[:, j]] for (i, j), table in pairs.items())


@pytest.mark.parametrize("rows", [(3, 2, 1, 5, 4, 2), (9,) * 12, (1, 1, 1, 1, 1), (250,) * 6])
def test_equals_the_naive_sum(rows):
    given = problem(1, rows)
    np.testing.assert_allclose(joint_sum(*given), naive(*given), atol=1e-12)


def test_nodes_share_lookups_and_pairs_among_them_cost_none():
    _, tables, pairs = problem(2, (4,) * 12)
    lookups = join(tables, pairs)  # six nodes of 4 rows make 4096 entries
    assert [nodes for nodes, _, _ in lookups] == [(0, 1, 2, 3, 4, 5), (6, 7, 8, 9, 10, 11), (0, 11)]
    assert [len(table) for _, _, table in lookups] == [4096, 4096, 16]


def test_chunks_and_threads_change_nothing(monkeypatch):
    given = problem(3, (5, 3, 2, 4, 4, 2), configs=101)
    expected = joint_sum(*given)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert (joint_sum(*given, threads=3) == expected).all()


def test_nothing_to_add_is_zero():
    codes = np.zeros((3, 0), np.uint8)
    assert joint_sum(codes, [], {}).tolist() == [0, 0, 0]


def test_tables_above_the_range_of_a_short_integer():
    given = problem(4, (300, 2, 1, 300, 2, 2))
    codes, tables, pairs = given
    codes = codes.astype(np.uint16)
    codes[0, 0], codes[0, 3] = 299, 299
    pairs[0, 3] = np.random.default_rng(0).standard_normal((300, 300))
    assert joint_sum(codes, tables, pairs) == pytest.approx(naive(codes, tables, pairs))
