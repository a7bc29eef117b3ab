import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

torch = pytest.importorskip("torch", reason="needs requirements-gnn.txt")
pytest.importorskip("torch_geometric", reason="needs requirements-gnn.txt")

from torch_geometric.nn import SAGEConv  # noqa: E402

from utils import gnn, gnn_study, study  # noqa: E402
from utils.dataset import DataError, GraphFile, decode, deduplicate, read_graph  # noqa: E402
from utils.feature_tables import feature_tables  # noqa: E402
from utils.files import save_npz, write_parquet  # noqa: E402
from utils.gnn_graphs import describe, neighbourhood  # noqa: E402
from utils.gnn_network import Network, Settings, SharedSAGE, tensors  # noqa: E402
from utils.layout_rows import byte_count  # noqa: E402
from utils.metrics import pair_accuracy  # noqa: E402
from utils.notebook import open_run, table_path  # noqa: E402
from utils.synthetic import layout_graph, tile_graph, write_data  # noqa: E402

SMALL = Settings(hidden=16, layers=2, epochs=3, batch=16)


def coded(folder, seed, configs=80, layers=3):
    """A layout graph without noise, its distinct configurations."""
    arrays, _ = layout_graph(seed, "nlp", "random", layers, configs, rounds=0, noise=0.0)
    path = folder / f"mlp.s{seed}.npz"
    save_npz(path, **arrays)
    file = GraphFile("layout:nlp:random", "train", f"family{seed}.s", path, ours=True)
    return deduplicate(read_graph(file))[0]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gnn")
    return [coded(folder, seed) for seed in range(6)]


@pytest.fixture(scope="module")
def small(graphs):
    """A slightly trained network and the graph it is tried on."""
    described = [describe(graph, False, SMALL.layers) for graph in graphs[:3]]
    return gnn.fit(described, SMALL, threads=1), described[0]


def test_it_learns_a_world_where_costs_add_up(tmp_path):
    graphs = [coded(tmp_path, seed, configs=300) for seed in range(6)]
    whole = [
        replace(describe(graph, True, 2), target=1e5 + byte_count(graph)) for graph in graphs
    ]

    def half(graph, start):
        return replace(graph, codes=graph.codes[start::2], target=graph.target[start::2])

    settings = Settings(extra=True, hidden=32, layers=2, epochs=50, rate=4e-3, weighted=False)
    trained = gnn.fit([half(graph, 0) for graph in whole[:5]], settings, threads=1)
    assert trained.history[-1]["loss"] < trained.history[0]["loss"] / 4
    for graph in (half(graph, 1) for graph in whole[:5]):  # configurations that it has not seen
        assert without_ties(graph.target, gnn.predict(trained, graph)) > 0.9
    unseen = whole[5]  # a program that it has not seen
    assert without_ties(unseen.target, gnn.predict(trained, unseen)) > 0.8


def without_ties(target, score):
    """Tau over the pairs of different target."""
    return 2 * pair_accuracy(target, score) - 1


def test_it_learns_tiles(tmp_path):
    described = []
    for seed in range(6):
        arrays, _ = tile_graph(seed, 40, rounds=0, noise=0.0)
        path = tmp_path / f"dot.s{seed}.npz"
        save_npz(path, **arrays)
        file = GraphFile("tile:xla", "train", f"dot.s{seed}", path, ours=True)
        described.append(describe(deduplicate(read_graph(file))[0], True, 2))
    settings = Settings(extra=True, hidden=32, layers=2, epochs=60, rate=4e-3, weighted=False)
    trained = gnn.fit(described, settings, threads=1)
    scores = [gnn.predict(trained, graph) for graph in described]
    taus = [without_ties(graph.target, score) for graph, score in zip(described, scores)]
    assert np.mean(taus) > 0.9
    np.testing.assert_allclose(gnn.predict(trained, described[0], batch=3), scores[0], atol=1e-5)


def test_rows_are_the_layouts_of_the_file(graphs):
    graph, described = graphs[0], describe(graphs[0], False, 2)
    rows = described.rows_of(np.arange(graph.configs))  # [nc, c]
    one_hot = described.row[rows].reshape(*rows.shape, 18, 7)
    np.testing.assert_array_equal(one_hot.argmax(3).swapaxes(0, 1) - 1, decode(graph))
    assert (one_hot.sum(3) == 1).all()
    with_extra = describe(graph, True, 2)
    assert (with_extra.row[:, : described.row.shape[1]] == described.row).all()
    assert with_extra.row.shape[1] > described.row.shape[1] + 50
    assert np.isfinite(with_extra.row).all() and np.isfinite(with_extra.node).all()


def test_the_layer_is_graphsage_for_every_configuration(graphs):
    described = describe(graphs[0], False, 2)
    torch.manual_seed(0)
    theirs = SAGEConv(8, 8, aggr="mean")
    ours = SharedSAGE(8, True)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(len(described.opcode), 5, 8)
    found = ours(x, tensors(described).matrices[0])
    edges = torch.from_numpy(described.edges[:, ::-1].T.copy())  # from the producer to the consumer
    for b in range(5):
        torch.testing.assert_close(found[:, b], theirs(x[:, b], edges))


def test_the_batch_size_changes_nothing(small):
    trained, graph = small
    whole = gnn.predict(trained, graph)
    assert whole.std() > 1e-3 and len(whole) == graph.configs
    for batch in (1, 7):
        np.testing.assert_allclose(gnn.predict(trained, graph, batch=batch), whole, atol=1e-5)


def test_the_numbering_of_nodes_changes_nothing(graphs, small):
    graph = graphs[0]
    place = np.random.default_rng(0).permutation(len(graph.opcode))  # old number -> new number
    back = np.argsort(place)
    moved = replace(
        graph, node_feat=graph.node_feat[back], opcode=graph.opcode[back],
        edges=place[graph.edges], config_nodes=place[graph.config_nodes],
    )  # fmt: skip
    scores = gnn.predict(small[0], describe(moved, False, 2))
    np.testing.assert_allclose(scores, gnn.predict(small[0], small[1]), atol=1e-5)


def test_the_same_seed_gives_the_same_network(graphs):
    described = [describe(graph, False, SMALL.layers) for graph in graphs[:2]]
    runs = [gnn.fit(described, SMALL, seed=seed, threads=1) for seed in (0, 0, 1)]
    a, b, other = (gnn.predict(run, described[0]) for run in runs)
    assert (a == b).all() and (a != other).any()
    backwards = gnn.predict(gnn.fit(described[::-1], SMALL, threads=1), described[0])
    assert (a == backwards).all()


def test_hops_are_counted_in_both_directions():
    edges = np.array([[1, 0], [2, 1], [3, 2], [4, 3], [4, 5]])
    near = [neighbourhood(6, edges, np.array([2]), hops).nonzero()[0].tolist() for hops in range(4)]
    assert near == [[2], [1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]


def test_pruning_keeps_what_is_computed_at_configurable_nodes(tmp_path):
    graph = coded(tmp_path, 7, layers=8)
    graph = replace(  # two nodes choose, so that most of the graph is far away
        graph, config_nodes=graph.config_nodes[:2], row_start=graph.row_start[:3],
        row_layout=graph.row_layout[: graph.row_start[2]], codes=graph.codes[:, :2],
    )  # fmt: skip
    settings = Settings(hidden=16, layers=3)
    whole, cut = (describe(graph, False, 3, limit) for limit in (1000, 10))
    assert len(cut.opcode) < len(whole.opcode) == len(graph.opcode)
    torch.manual_seed(1)
    network = Network(settings, whole.node.shape[1], whole.row.shape[1], tile=False).eval()
    found = []
    network.head.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    for described in (whole, cut):
        rows = torch.from_numpy(described.rows_of(np.arange(graph.configs)))
        network(tensors(described), rows)
    at_nodes = slice(settings.hidden, None)  # behind the mean over all nodes
    torch.testing.assert_close(found[0][:, at_nodes], found[1][:, at_nodes])
    assert found[0][:, at_nodes].std(0).max() > 1e-4


def test_losses_by_hand():
    score, target = torch.tensor([0.0, 1.0, 0.95]), torch.tensor([0.0, 1.0, 5.0])
    equal = Settings(margin=0.1, weighted=False)
    # pairs (slower, faster): (1, 0) and (2, 0) are right by more than the margin, (2, 1) is wrong
    assert gnn.hinge(score, target, equal).item() == pytest.approx(0.15 / 3)
    weighted = gnn.hinge(score, target, Settings(margin=0.1)).item()
    assert weighted == pytest.approx(2 * 0.15 / (1 + 5**0.5 + 2))
    assert gnn.hinge(score, torch.zeros(3), equal).item() == 0
    e = np.exp(score.numpy().astype(float))
    expected = np.log(e.sum()) - 0.95 + np.log(e[0] + e[1]) - 1.0
    assert gnn.listmle(score, target).item() == pytest.approx(expected / 3, abs=1e-6)


def test_a_saved_network_gives_the_same_scores(small, tmp_path):
    trained, graph = small
    gnn.save_model(trained, tmp_path / "gnn", seed=0)
    loaded = gnn.load_model(tmp_path / "gnn")
    assert (gnn.predict(loaded, graph) == gnn.predict(trained, graph)).all()
    about = json.loads((tmp_path / "gnn.json").read_text())
    (tmp_path / "gnn.json").write_text(json.dumps(about | {"gnn_version": 0}))
    with pytest.raises(DataError, match="train again"):
        gnn.load_model(tmp_path / "gnn")


def test_nothing_to_tell_apart_is_refused(graphs):
    flat = replace(describe(graphs[0], False, 2), target=np.ones(graphs[0].configs))
    with pytest.raises(DataError, match="no graph with configurations to tell apart"):
        gnn.fit([flat], SMALL)


@pytest.mark.parametrize(
    "changes", [{"loss": "listmle"}, {"cross": True}, {"dropout": 0.2}, {"sized": True}]
)
def test_options_train(graphs, changes):
    described = [describe(graph, False, 2) for graph in graphs[:2]]
    trained = gnn.fit(described, replace(SMALL, epochs=12, **changes), described, threads=1)
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]
    best = max(h["tau"] for h in trained.history if h["tau"] is not None)
    assert gnn.mean_tau(trained, described) == pytest.approx(best)  # the best weights are kept


COLLECTION = "layout:nlp:random"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One small collection with the tables of notebook 04."""
    folder = tmp_path_factory.mktemp("study")
    counts = {"train": 4, "valid": 2, "test": 1}
    data = write_data(folder / "data", 3, counts, 20, 2, collections=(COLLECTION,))
    run = open_run(folder, str(data), str(folder / "out"))
    for file in run.files:
        for kind, table in zip(("features", "rows"), feature_tables(read_graph(file))):
            write_parquet(table_path(run, kind, file), table)
    return run


def test_fits_leave_predictions_and_are_not_run_twice(run):
    fits = study.plan(run, folds=3, trained=["gnn", "gnn/extra"]).fits
    few = {"epochs": 2, "hidden": 8, "layers": 1}
    assert gnn_study.run_fits(run, fits, threads=1, refit=True, **few) == 4
    assert gnn_study.run_fits(run, fits, threads=1, refit=True, **few) == 0
    assert gnn_study.run_fits(run, fits[:1], threads=1, refit=True, **few | {"epochs": 3}) == 1
    folder = run.out / "tables" / "predictions" / "layout_nlp_random" / "gnn__extra"
    for protocol in ("valid_0_0", "test_0_0", "family_cv_0_0_fold0"):
        table = pl.read_parquet(folder / f"{protocol}.parquet")
        assert table.columns == ["split", "name", "config", "score"]
        assert np.isfinite(table["score"].to_numpy()).all()
        costs = json.loads((folder / f"{protocol}.json").read_text())
        assert costs["fit_s"] > 0 and costs["rows"] == len(table) and costs["refit"] is True
        assert len(costs["history"]) == 2 and 1 <= costs["epochs"] <= 2
    (test,) = [file for file in run.files if file.split == "test"]
    loaded = gnn.load_model(gnn_study.model_stem(run, COLLECTION, "gnn/extra"))
    scores = gnn.predict(loaded, gnn_study.Graphs(run)(test, loaded.settings))
    table = pl.read_parquet(folder / "test_0_0.parquet")
    assert (scores == table["score"].to_numpy()).all()


def test_what_stops_training_is_neither_trained_on_nor_scored(run, monkeypatch):
    seen = []

    def spy(graphs, settings, held_out=(), **rest):
        seen.append(({g.file for g in graphs}, {g.file for g in held_out}))
        return original(graphs, settings, held_out, **rest)

    original = gnn.fit
    monkeypatch.setattr(gnn, "fit", spy)
    for fit in study.plan(run, folds=3, trained=["gnn"]).fits:
        seen.clear()
        small = replace(SMALL, epochs=1)
        _, noted = gnn_study.train(fit, gnn_study.Graphs(run), small, refit=True, threads=1)
        (learned, held), (all_, none) = seen
        families = [{file.family for file in part} for part in (learned, held)]
        assert held and not families[0] & families[1] and noted["held_out"] == sorted(families[1])
        assert learned | held == all_ == set(fit.train) and not none
        scored = {file for of in fit.scored.values() for file in of}
        assert not scored & all_


def test_one_family_has_nothing_to_hold_out(run):
    one = [file for file in run.files if file.split == "train"][:1]
    assert gnn_study.part_files(one, 0) == (one, [])
    assert gnn_study.settings_of("gnn", one).weighted is False
    assert gnn_study.settings_of("gnn", run.files).weighted is True
    assert gnn_study.settings_of("gnn/listmle", run.files, epochs=7) == Settings(
        extra=True, loss="listmle", epochs=7
    )


def test_training_can_be_limited_to_some_configurations(graphs):
    described = describe(graphs[0], False, 2)
    part = gnn_study.first_configs(described, 9)
    whole = dict(zip(map(tuple, described.codes.tolist()), described.target))
    assert part.configs == len(part.codes) == 9
    assert [whole[tuple(codes)] for codes in part.codes.tolist()] == part.target.tolist()
    assert gnn_study.first_configs(described, 0) is described
