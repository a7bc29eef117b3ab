import numpy as np
import pytest

from utils import joint_sum as module
from utils.joint_sum import join, joint_sum


def problem(seed, rows, configs=50):
    rng = np.random.default_rng(seed)
    codes = np.asfortranarray(np.stack([rng.integers(r, size=configs) for r in rows], 1), np.uint8)
    filed = [*((j,) for j in range(len(rows))), (0, 1), (3, 1), (0, len(rows) - 1), (2, 4)]
    return codes, {nodes: rng.standard_normal([rows[j] for j in nodes]) for nodes in filed}


def naive(codes, tables):
    return sum(table[tuple(codes[:, j] for j in nodes)] for nodes, table in tables.items())


@pytest.mark.parametrize("rows", [(3, 2, 1, 5, 4, 2), (9,) * 12, (1, 1, 1, 1, 1), (250,) * 6])
def test_equals_the_naive_sum(rows):
    given = problem(1, rows)
    np.testing.assert_allclose(joint_sum(*given), naive(*given), atol=1e-12)


def chain(rows):
    """A table for each node and one for it and the next."""
    links = [((i, i + 1), np.zeros(rows[i : i + 2])) for i in range(len(rows) - 1)]
    return dict(links) | {(i,): np.zeros(many) for i, many in enumerate(rows)}


def test_nodes_share_lookups_and_links_among_them_cost_none():
    lookups = join({(i,): np.zeros(4) for i in range(12)})  # six nodes of 4 rows: 4096 entries
    assert [table.size for _, table in lookups] == [4096, 4096]
    groups = [sorted(nodes) for nodes, _ in join(chain((9,) * 8))]
    assert groups == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7]]  # 9 ** 4 = 6561, 9 ** 5 is too many
    far = chain((9,) * 4) | {(0, 7): np.zeros((9, 9)), (7,): np.zeros(9)}
    assert [sorted(nodes) for nodes, _ in join(far)] == [[0, 1, 2, 3], [0, 7]]


def test_chunks_and_threads_change_nothing(monkeypatch):
    given = problem(3, (5, 3, 2, 4, 4, 2), configs=101)
    expected = joint_sum(*given)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert (joint_sum(*given, threads=3) == expected).all()


def test_nothing_to_add_is_zero():
    codes = np.zeros((3, 0), np.uint8)
    assert joint_sum(codes, {}).tolist() == [0, 0, 0]


def test_tables_above_the_range_of_a_short_integer():
    given = problem(4, (300, 2, 1, 300, 2, 2))
    codes, tables = given
    codes = codes.astype(np.uint16)
    codes[0, 0], codes[0, 3] = 299, 299
    tables[0, 3] = np.random.default_rng(0).standard_normal((300, 300))
    assert joint_sum(codes, tables) == pytest.approx(naive(codes, tables))
