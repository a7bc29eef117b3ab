from dataclasses import replace

import numpy as np
import pytest
from hand_graphs import DOTS, FEW, PLAIN, column, layout_graph, random_graph, renumbered

from utils.coding import decode, read_graph
from utils.cost_rows import (
    KINDS, OUT, PAIR, SLOT, cost_rows, row_weights, score_rows, terms, without,
)  # fmt: skip
from utils.cost_tables import (
    LINEAR, LOG, fit, load_model, loss, make_objective, predict, row_values, sample_pairs,
    save_model, sum_matrix,
)
from utils.dataset import DataError, index
from utils.files import save_npz, write_json
from utils.layout_rows import byte_count
from utils.metrics import kendall_tau
from utils.synthetic import layout_graph as generate

# Without noise there is nothing to hold back for, and small steps to the end pay.
CAREFUL = {"trees": 1000, "max_depth": 4, "min_child_weight": 1, "threads": 1}


def tau_without_ties(score, cost):
    """Equal true costs of unlike configurations would cap tau-b below 1."""
    first = np.unique(cost, return_index=True)[1]
    assert len(first) > 20
    return kendall_tau(score[first], cost[first])


def world(folder, seed, runtime=None, configs=200):
    """A generated chain of dots and reshapes without noise, its rows, terms and true cost."""
    arrays, cost = generate(seed, "nlp", "random", 5, configs, rounds=0, noise=0.0)
    path = folder / f"layout/nlp/random/train/mlp.s{seed}.npz"
    save_npz(path, **arrays)
    graph = read_graph(next(file for file in index(folder) if file.path == path))
    cost = cost if runtime is None else runtime(graph)
    rows = cost_rows(graph)
    return graph, rows, terms(graph, rows), cost


def test_odd_slots_of_a_configuration_are_the_byte_count():
    rows = cost_rows(FEW)
    odd = (rows.kind == SLOT) * (column(rows, "is_default") == 0) * 4.0 * rows.elements
    known = score_rows(FEW, rows, odd)
    expected = byte_count(FEW)
    assert (known - known[0] == expected - expected[0]).all()  # columns of one row are left out
    assert len(set(expected)) == 5


def test_pair_rows_know_which_configurations_copy():
    rows = cost_rows(FEW)
    copy = (rows.kind == PAIR) * column(rows, "copied")
    # Output of the first dot against input of the second, unset = the maker's or row-major.
    assert score_rows(FEW, rows, copy).tolist() == [0, 1, 0, 0, 0, 0]
    handed = (rows.kind == PAIR) * column(rows, "handed_on")
    assert score_rows(FEW, rows, handed).tolist() == [0, 0, 0, 0, 1, 0]


def test_fixed_rows_face_parameters_and_out_rows_the_root():
    rows = cost_rows(FEW)
    fixed = rows.kind == KINDS.index("fixed")
    copied = score_rows(FEW, rows, fixed * column(rows, "copied"))
    assert copied.tolist() == [0, 0, 1, 1, 2, 0]  # kernels of both dots and input of the first
    root = (rows.kind == OUT) * column(rows, "out_root")
    odd_root = score_rows(FEW, rows, root * (column(rows, "is_default") == 0))
    assert odd_root.tolist() == [0, 0, 0, 0, 1, 0]


def test_every_configuration_takes_one_row_from_each_column():
    rows = cost_rows(FEW)
    taken = terms(FEW, rows)
    assert taken.shape == (6, len(rows.columns))
    assert (taken[[1, 3]] == terms(FEW, rows, np.array([1, 3]))).all()
    assert all((np.unique(c) != c[0]).any() for c in taken.T if len(np.unique(c)) > 1)
    groups = [np.unique(column) for column in taken.T]
    assert len(np.unique(np.concatenate(groups))) == sum(map(len, groups))  # none in two columns


def test_scores_equal_the_naive_sum(tmp_path):
    graph = random_graph(tmp_path, 3)
    rows = cost_rows(graph)
    value = np.random.default_rng(0).standard_normal(len(rows.kind))
    naive = [sum(value[row] for row in taken) for taken in terms(graph, rows)]
    np.testing.assert_allclose(score_rows(graph, rows, value), naive, atol=1e-12)


def test_row_weights_by_hand():
    rows = cost_rows(FEW)
    # Elements of the slots: 64, 32, 128 of the first dot and 8, 64, 32 of the second.
    slots = np.array([64, 32, 128, 8, 64, 32])
    assert sorted(rows.slot_elements) == sorted(slots)
    np.testing.assert_allclose(
        row_weights(rows, LINEAR), rows.elements / np.sqrt((slots**2).sum())
    )
    logs = np.log2(1 + slots)
    expected = np.log2(1 + rows.elements) / np.sqrt((logs**2).sum())
    np.testing.assert_allclose(row_weights(rows, LOG), expected)
    assert (row_weights(without(rows, ("pair",)), LOG)[rows.kind == PAIR] == 0).all()


def test_rows_without_roles_have_no_role():
    rows = without(cost_rows(FEW), prefixes=("role_",))
    assert not any(name.startswith("role_") for name in rows.names)
    assert rows.features.shape == (len(rows.kind), len(rows.names))


def test_pairs_are_all_pairs_of_few_configurations_without_ties():
    target = np.array([5.0, 7.0, 5.0, 9.0])
    pairs = sample_pairs(target, np.random.default_rng(0))
    drawn = set(zip(pairs.slow.tolist(), pairs.fast.tolist()))
    assert drawn == {(1, 0), (1, 2), (3, 0), (3, 2), (3, 1)}
    assert pairs.weight.mean() == pytest.approx(1)
    weight = dict(zip(zip(pairs.slow, pairs.fast), pairs.weight))
    ratio = np.sqrt(np.log(9 / 5) / np.log(7 / 5))
    assert weight[3, 0] / weight[1, 0] == pytest.approx(ratio)


def test_pairs_of_many_configurations_are_sampled():
    target = np.arange(1.0, 101.0)
    pairs = sample_pairs(target, np.random.default_rng(0), count=8, weighted=False)
    assert len(pairs.slow) == 800 and (target[pairs.slow] > target[pairs.fast]).all()
    assert (pairs.weight == 1).all()


@pytest.mark.parametrize("gamma", [LOG, 0.5, LINEAR])
def test_gradient_agrees_with_finite_differences(tmp_path, gamma):
    graph = random_graph(tmp_path, 5)
    rows = cost_rows(graph)
    matrix = sum_matrix(rows, terms(graph, rows), gamma)
    rng = np.random.default_rng(1)
    pairs = sample_pairs(graph.target, rng)
    value = rng.standard_normal(len(rows.kind)).astype(np.float32)
    gradient, hessian = make_objective(matrix, pairs)(value)
    step, exact = 1e-5, value.astype(float)
    bend = []
    for q in range(0, len(value), 7):
        up, down = exact.copy(), exact.copy()
        up[q] += step
        down[q] -= step
        high, low = loss(matrix, pairs, up), loss(matrix, pairs, down)
        assert gradient[q] == pytest.approx((high - low) / (2 * step), abs=1e-4)
        second = make_objective(matrix, pairs)
        bend.append((second(up)[0][q] - second(down)[0][q]) / (2 * step))
    # Larger than the curvature of one row alone: so many rows are moved at once.
    assert (hessian[::7] >= np.array(bend) - 1e-6).all()


def test_scores_do_not_depend_on_the_order_of_nodes_or_configurations(tmp_path):
    graph = random_graph(tmp_path, 7)
    rows = cost_rows(graph)
    model = fit([rows], [terms(graph, rows)], [graph.target], trees=20, threads=1)
    score = predict(model, graph, rows, threads=1)
    other = renumbered(graph, 1)
    np.testing.assert_allclose(predict(model, other, cost_rows(other), 1), score, atol=1e-9)
    order = np.random.default_rng(2).permutation(graph.configs)
    shuffled = replace(graph, codes=graph.codes[order], runtime=graph.runtime[order])
    np.testing.assert_allclose(predict(model, shuffled, rows, 1), score[order], atol=1e-9)
    assert score.std() > 0


def test_the_same_seed_gives_the_same_model(tmp_path):
    graph = random_graph(tmp_path, 7)
    rows = cost_rows(graph)
    given = [rows], [terms(graph, rows)], [graph.target]
    first, again = (fit(*given, trees=5, threads=1) for _ in range(2))
    assert (row_values(first, rows) == row_values(again, rows)).all()
    other = fit(*given, trees=5, threads=1, seed=1)
    assert (row_values(first, rows) != row_values(other, rows)).any()


def test_an_additive_world_is_recovered_on_new_graphs(tmp_path):
    train = [world(tmp_path, seed) for seed in range(12)]
    _, rows, taken, cost = zip(*train)
    model = fit(rows, taken, cost, **CAREFUL)
    for seed in (20, 21, 22):
        graph, rows, _, cost = world(tmp_path, seed)
        assert tau_without_ties(predict(model, graph, rows, 1), cost) > 0.98


def copies_only(graph):
    """Bytes of the inputs whose order is not the one that the node before left behind."""
    layouts = decode(graph).reshape(graph.configs, -1, 3, 6)
    odd = (layouts[..., 0] >= 0) & (layouts[..., 0] < layouts[..., 1])  # [c, nc, 3]
    size = np.array([np.prod(s[s > 0]) for s in graph.node_feat[graph.config_nodes, 21:27]])
    copied = odd[:, 1:, 1] != odd[:, :-1, 0]  # an input has the size of the output before it
    return 1e6 + 4.0 * copied @ size[:-1]


def test_a_copy_cost_is_found_only_with_pair_rows(tmp_path):
    train = [world(tmp_path, seed, copies_only) for seed in range(12)]
    _, rows, taken, cost = zip(*train)
    graph, new, _, true = world(tmp_path, 20, copies_only)
    with_pairs = fit(rows, taken, cost, **CAREFUL)
    assert tau_without_ties(predict(with_pairs, graph, new, 1), true) > 0.95
    alone = fit([without(r, KINDS[1:]) for r in rows], taken, cost, **CAREFUL)
    score = predict(alone, graph, without(new, KINDS[1:]), 1)
    assert tau_without_ties(score, true) < 0.6


def test_node_vectors_become_features():
    vectors = np.arange(12.0).reshape(6, 2)
    rows = cost_rows(FEW, vectors)
    assert set(column(rows, "mp_1")) == {5.0, 11.0}  # of the two dots, nodes 2 and 5
    assert "mp_0" not in cost_rows(FEW).names


def test_nothing_to_learn_from_is_an_error():
    same = layout_graph(DOTS, [{2: (PLAIN,) * 3, 5: (PLAIN,) * 3}] * 3, [5, 6, 7])
    rows = cost_rows(same)
    with pytest.raises(DataError, match="no graph with configurations to tell apart"):
        fit([rows], [terms(same, rows)], [same.target])
    rows = cost_rows(FEW)
    with pytest.raises(DataError, match="no graph with configurations to tell apart"):
        fit([rows], [terms(FEW, rows)], [np.ones(6)])


def test_a_saved_model_gives_the_same_scores_and_refuses_other_rows(tmp_path):
    graph = random_graph(tmp_path, 7)
    rows = cost_rows(graph)
    model = fit([rows], [terms(graph, rows)], [graph.target], gamma=LOG, trees=20, threads=1)
    save_model(model, tmp_path / "cost_tables", trained_on=["mlp.a"])
    loaded = load_model(tmp_path / "cost_tables")
    assert loaded.gamma == LOG
    assert (predict(loaded, graph, rows, 1) == predict(model, graph, rows, 1)).all()
    with pytest.raises(DataError, match="other features"):
        predict(loaded, graph, without(rows, prefixes=("role_",)))
    write_json(tmp_path / "cost_tables.json", {"feature_version": 0, "gamma": 0, "names": []})
    with pytest.raises(DataError, match="feature version 0"):
        load_model(tmp_path / "cost_tables")
