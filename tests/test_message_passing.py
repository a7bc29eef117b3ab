"""Message passing by hand on a path, and what must not change the vectors."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from utils.dataset import DataError, index
from utils.files import save_npz
from utils.message_passing import (
    INPUT_NAMES,
    block_names,
    column_names,
    fit_reducer,
    group_shares,
    listens_to,
    load_reducer,
    mean_matrices,
    node_inputs,
    node_vectors,
    propagate,
    save_reducer,
)
from utils.notebook import open_run, table_path
from utils.opcode_groups import GROUPS
from utils.structure import read_structure
from utils.synthetic import write_data
from utils.vector_tables import (
    get_reducer,
    main_neighbour,
    nearest_alike,
    neighbour_probe,
    pool,
    sample_nodes,
    spread_files,
    write_vectors,
)

PATH = np.array([[1, 0], [2, 1], [3, 2]])  # 0 -> 1 -> 2 -> 3


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return write_data(folder, graphs={"train": 2, "valid": 1, "test": 1}, configs=5)


def test_path_graph_by_hand():
    x = np.array([[1.0], [10.0], [100.0], [1000.0]], dtype=np.float32)
    blocks = dict(zip(block_names(), propagate(x, PATH).T.tolist()))
    assert blocks == {
        "": [1, 10, 100, 1000],
        "P": [0, 1, 10, 100],
        "C": [10, 100, 1000, 0],
        "PP": [0, 0, 1, 10],
        "PC": [0, 10, 100, 1000],  # consumers of the producer: oneself
        "CP": [1, 10, 100, 0],
        "CC": [100, 1000, 0, 0],
    }


def test_means_keep_producers_and_consumers_apart():
    # 0 and 1 feed 2; 2 and 0 feed 3.
    edges = np.array([[2, 0], [2, 1], [3, 2], [3, 0]])
    producers, consumers = mean_matrices(4, edges)
    assert producers.toarray().tolist() == [[0] * 4, [0] * 4, [0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0]]
    assert consumers.toarray().tolist() == [[0, 0, 0.5, 0.5], [0, 0, 1, 0], [0, 0, 0, 1], [0] * 4]
    x = np.array([[1.0], [2], [4], [8]], np.float32)
    # Siblings of 1: the producers of its consumers, here of 2 alone: 0 and 1.
    assert propagate(x, edges)[1, block_names().index("CP")] == 1.5


def test_three_rounds_have_fifteen_blocks():
    assert len(block_names(3)) == 15 and len(set(block_names(3))) == 15
    x = np.eye(4, dtype=np.float32)
    wide = propagate(x, PATH, 3)
    assert wide.shape == (4, 60)
    block = block_names(3).index("PPP")
    assert wide[3, 4 * block : 4 * block + 4].tolist() == [1, 0, 0, 0]


def test_order_of_nodes_does_not_matter(data):
    graph = read_structure(index(data, ["layout:xla:random"])[0])
    rng = np.random.default_rng(0)
    order = rng.permutation(len(graph.opcode))  # any order, not only a topological one
    position = np.argsort(order)
    moved = replace(
        graph,
        node_feat=graph.node_feat[order],
        opcode=graph.opcode[order],
        edges=rng.permutation(position[graph.edges]),
        config_nodes=position[graph.config_nodes],
    )
    a = propagate(node_inputs(graph), graph.edges)[order]
    b = propagate(node_inputs(moved), moved.edges)
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    reducer = fit_reducer(index(data, ["layout:xla:random"])[:1], columns=4)
    np.testing.assert_allclose(
        node_vectors(graph, reducer)[order], node_vectors(moved, reducer), rtol=1e-4, atol=1e-4
    )


def test_inputs_say_what_the_node_is(data):
    graph = read_structure(index(data, ["layout:nlp:random"])[0])
    x = dict(zip(INPUT_NAMES, node_inputs(graph).T))
    groups = np.stack([x[f"group:{name}"] for name in GROUPS])
    assert (groups.sum(0) == 1).all()
    assert (np.flatnonzero(x["configurable"]) == graph.config_nodes).all()
    dot = np.flatnonzero(x["opcode:dot"])[0]
    m, n = graph.node_feat[dot, 21:23].astype(float)
    assert x["elements"][dot] == pytest.approx(np.log2(1 + m * n) / 8, rel=1e-6)
    assert x["producers"][dot] == pytest.approx(np.log2(3) / 8, rel=1e-6)
    assert x["flops"][dot] > x["bytes"][dot]
    assert np.isfinite(node_inputs(graph)).all()


def test_vectors_are_centred_and_uncorrelated_on_the_nodes_fitted(data):
    files = [f for f in index(data) if f.split == "train"]
    reducer = fit_reducer(files, columns=6)
    z = np.concatenate([node_vectors(read_structure(f), reducer) for f in files])
    assert z.shape[1] == 6 and z.dtype == np.float32
    covariance = np.cov(z.T)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-3)
    assert (np.diff(np.diag(covariance)) <= 1e-4).all()
    assert (np.diff(reducer.explained) <= 0).all() and 0.3 < reducer.explained.sum() <= 1


def test_fitted_on_train_only(data, tmp_path):
    """Ruin every valid and test graph: the vectors of the training graphs stay the same."""
    other = tmp_path / "other"
    some = "layout:xla:random,tile:xla"
    run = open_run(tmp_path, str(data), "plain", some)
    write_vectors(run, get_reducer(run, 5, 0))
    for file in run.files:
        target = other / file.path.relative_to(data)
        with np.load(file.path, allow_pickle=False) as z:
            arrays = dict(z)
        if file.split != "train":
            arrays["node_feat"] = arrays["node_feat"][::-1] * 3
        save_npz(target, **arrays)
    changed = open_run(tmp_path, str(other), "changed", some)
    write_vectors(changed, get_reducer(changed, 5, 0))
    equal = {"train": [], "valid": [], "test": []}
    for a, b in zip(run.files, changed.files):
        before = pl.read_parquet(table_path(run, "node_vectors", a))
        after = pl.read_parquet(table_path(changed, "node_vectors", b))
        equal[a.split].append(before.equals(after))
    assert all(equal["train"]) and not any(equal["valid"] + equal["test"])


def test_saved_reducer_gives_the_same_vectors(data, tmp_path):
    files = index(data, ["layout:nlp:default"])
    reducer = fit_reducer(files[:2], columns=7, seed=3)
    save_reducer(tmp_path / "r.npz", reducer)
    loaded = load_reducer(tmp_path / "r.npz")
    graph = read_structure(files[-1])
    np.testing.assert_array_equal(node_vectors(graph, reducer), node_vectors(graph, loaded))
    assert loaded.columns.tolist() == column_names()
    assert loaded.fitted_on.tolist() == [f.id for f in files[:2]]
    save_reducer(tmp_path / "old.npz", replace(reducer, columns=reducer.columns[::-1]))
    with pytest.raises(DataError, match="other columns"):
        load_reducer(tmp_path / "old.npz")


def test_few_nodes_leave_columns_zero(data):
    """Two-node kernels cannot fill sixteen columns; nothing becomes NaN."""
    file = index(data, ["tile:xla"])[0]
    graph = read_structure(file)
    tiny = replace(graph, node_feat=graph.node_feat[:2], opcode=graph.opcode[:2], edges=PATH[:1])
    reducer = fit_reducer([file], columns=16, read=lambda _: tiny)
    z = node_vectors(tiny, reducer)
    assert np.isfinite(z).all() and (z[:, 2:] == 0).all() and abs(z[0, 0]) > 0.1
    with pytest.raises(DataError, match="no training graph"):
        fit_reducer([])


def test_run_reuses_what_is_there(data, tmp_path):
    run = open_run(tmp_path, str(data), "out", "layout:nlp:default,tile:xla")
    table = write_vectors(run, get_reducer(run, 3, 0))
    assert table.columns == ["collection", "split", "name"] + [
        f"mp_{kind}_{i}" for kind in ("mean", "cfg") for i in range(3)
    ]
    model = run.out / "models" / "message_passing.npz"
    paths = [model] + [table_path(run, "node_vectors", f) for f in run.files]
    before = [p.stat().st_mtime_ns for p in paths]
    paths[2].unlink()
    assert write_vectors(run, get_reducer(run, 3, 0)).equals(table)
    after = [p.stat().st_mtime_ns for p in paths]
    assert [i for i, (a, b) in enumerate(zip(before, after)) if a != b] == [2]
    get_reducer(run, 4, 0)
    assert len(load_reducer(model).components) == 4
    first = pl.read_parquet(paths[1])
    assert first.columns == ["mp_0", "mp_1", "mp_2"] and first.dtypes == [pl.Float32] * 3


def test_pooled_vector_by_hand(data):
    graph = read_structure(index(data, ["layout:nlp:random"])[0])
    vectors = np.zeros((len(graph.opcode), 1), np.float32)
    vectors[graph.config_nodes[0]] = 6
    small = replace(graph, config_nodes=graph.config_nodes[:1])
    assert pool(small, vectors) == {"mp_mean_0": pytest.approx(6 / len(vectors)), "mp_cfg_0": 6}


def test_probe_finds_what_only_the_vectors_know():
    rng = np.random.default_rng(0)

    def nodes(count):
        consumer = rng.integers(0, 3, count)
        consumer[:50] = -1  # nobody reads these
        vectors = np.eye(3)[consumer] + rng.normal(0, 0.05, (count, 3))
        inputs = rng.normal(size=(count, 4))
        return {"inputs": inputs, "vectors": vectors, "consumer": consumer,
                "producer": np.full(count, -1)}  # fmt: skip

    table = neighbour_probe(nodes(600), nodes(600))
    accuracy = dict(zip(table["columns"], table["accuracy"]))
    assert set(table["neighbour"]) == {"consumer"}
    assert accuracy["own columns"] < 0.45 and accuracy["most frequent"] < 0.45
    assert accuracy["node vectors"] > 0.98


def test_nearest_points_of_another_program():
    points = np.array([[0.0, 0], [0, 0.1], [5, 0], [0, 1], [5, 1.5]])
    group, program = np.array([0, 1, 1, 0, 1]), np.array(["a", "a", "a", "b", "b"])
    # The two points at the origin are of one program: both are nearest to (0, 1), of group 0.
    share, chance = nearest_alike(points, group, program)
    assert (share, chance) == (0.6, pytest.approx(0.16 + 0.36))
    assert nearest_alike(points, group, np.repeat("a", 5)) == (0.0, 0.0)


def test_main_neighbour_and_spread_of_files(data):
    graph = SimpleNamespace(
        opcode=np.array([63, 34, 96, 96], np.uint8),  # parameter, dot, tanh, tanh
        edges=np.array([[1, 0], [2, 1], [3, 1], [3, 0]]),
    )
    names = [GROUPS[i] if i >= 0 else None for i in main_neighbour(graph, consumers=True)]
    assert names == ["contraction", "elementwise", None, None]
    names = [GROUPS[i] if i >= 0 else None for i in main_neighbour(graph, consumers=False)]
    assert names == [None, "source", "contraction", "contraction"]
    chosen = spread_files(index(data), 5, seed=0)
    assert len({f.collection for f in chosen}) == 5
    assert spread_files(index(data), 10**6, seed=0) == index(data)


def test_what_a_node_hears_and_a_column_listens_to(data):
    file = index(data, ["layout:nlp:random"])[0]
    graph = read_structure(file)
    heard = group_shares(graph, int(graph.config_nodes[0]))
    assert heard.index.tolist() == ["self", "P", "C", "PP", "PC", "CP", "CC"]
    assert heard.loc["self"].to_dict() == {g: float(g == "contraction") for g in GROUPS}
    assert heard.loc["P", "source"] == 1 and heard.loc["C", "elementwise"] == 1
    reducer = fit_reducer([file], columns=5)
    np.testing.assert_allclose(listens_to(reducer).sum(axis=1), 100 * reducer.explained, rtol=1e-6)


def test_sampled_nodes_match_their_graph(data, tmp_path):
    run = open_run(tmp_path, str(data), "out", "layout:xla:random")
    write_vectors(run, get_reducer(run, 3, 0))
    sample = sample_nodes(run, run.files[:2], 40, seed=0)
    sizes = [len(read_structure(file).opcode) for file in run.files[:2]]
    assert len(sample["group"]) == sum(min(size, 20) for size in sizes)
    onehot = sample["inputs"][:, : len(GROUPS)]
    assert (onehot.argmax(1) == sample["group"]).all()
