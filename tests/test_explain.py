import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hand_graphs import FEW, ODD, PLAIN, column, dots, random_graph

from utils import explain as explaining
from utils.coding import deduplicate, read_graph
from utils.cost_rows import KINDS, OUT, PAIR, SLOT, cost_rows, terms
from utils.cost_tables import LOG, fit, load_model, predict, save_model
from utils.dataset import DataError, GraphFile, index
from utils.explain import by_node, choose_file, explain, sentence
from utils.explain_plots import neighbourhood, plot_neighbourhood, plot_terms
from utils.files import save_npz
from utils.layout_rows import default_config
from utils.model_files import model_stem
from utils.notebook import open_run
from utils.schema import LAYOUT_COLLECTIONS, SPLITS
from utils.synthetic import layout_graph as generate

ROOT = Path(__file__).resolve().parent.parent
REAL = Path(os.environ.get("TPUGRAPHS_DIR", ROOT.parent / "shared" / "tpugraphs"))


def small_model(graph, rows, **settings):
    return fit([rows], [terms(graph, rows)], [graph.target], trees=20, threads=1, **settings)


def check_sums(graph, rows, model, pairs):
    """Every explanation sums to the difference of the scores that `predict` gives."""
    score = predict(model, graph, rows, 1)
    found = 0
    for a, b in pairs:
        table = explain(graph, model, int(a), int(b), rows, 1)
        assert table["adds"].sum() == pytest.approx(score[a] - score[b], abs=1e-6)
        assert by_node(table)["adds"].sum() == pytest.approx(score[a] - score[b], abs=1e-6)
        assert table["adds"].to_list() == sorted(table["adds"], reverse=True)
        found += len(table)
    return found


@pytest.fixture
def values(monkeypatch):
    """Lets a test say what each row costs, whatever the model."""
    def of(function):
        monkeypatch.setattr(explaining, "row_values", lambda model, rows, threads: function(rows))
    return of


def test_a_pair_names_both_nodes_and_both_layouts(values):
    values(lambda rows: (rows.kind == PAIR) * column(rows, "copied") * 3.0)
    (line,) = explain(FEW, None, 1, 0).to_dicts()
    assert line == {
        "adds": 3.0, "kind": "pair", "node": 5, "operation": "dot", "slot": "input",
        "shape": "4x16", "other": 2, "faces": "dot", "in_b": "{1,0} > {1,0}",
        "in_a": "{0,1} > {1,0}",
    }  # fmt: skip
    (back,) = explain(FEW, None, 0, 1).to_dicts()
    assert back["adds"] == -3.0 and back["in_a"] == line["in_b"]


def test_a_slot_names_its_tensor_and_an_unset_layout(values):
    values(lambda rows: (rows.kind == SLOT) * (1 - column(rows, "is_default")) * rows.elements)
    table = explain(FEW, None, 3, 2)
    assert table.select("adds", "node", "slot", "shape", "in_b", "in_a").rows() == [
        (32.0, 5, "kernel", "16x2", "{1,0}", "{0,1}"),
        (-64.0, 2, "output", "4x16", "{0,1}", "unset"),
        (-64.0, 5, "input", "4x16", "{0,1}", "{1,0}"),
        (-128.0, 2, "kernel", "8x16", "{0,1}", "unset"),
    ]
    assert by_node(table).rows() == [(5, "dot", -32.0), (2, "dot", -192.0)]
    words = sentence(table)
    assert words.startswith("a is faster than b by 224.000;") and "kernel of dot 2 (57%" in words


def test_fixed_makers_and_readers_are_named(values):
    values(lambda rows: (rows.kind == KINDS.index("fixed")) * column(rows, "copied"))
    told = explain(FEW, None, 4, 0).select("kind", "node", "other", "faces", "in_a").rows()
    copied = ("parameter", "{1,0} > {0,1}")
    assert told == [("fixed", 2, 0, *copied), ("fixed", 2, 1, *copied)]
    values(lambda rows: (rows.kind == OUT) * (1 - column(rows, "is_default")))
    told = explain(FEW, None, 4, 0).select("kind", "node", "other", "faces", "in_a").rows()
    assert told == [("out", 5, None, "root", "{0,1}")]


def test_equal_configurations_and_wrong_numbers(values):
    values(lambda rows: np.ones(len(rows.kind)))
    same = explain(FEW, None, 2, 2)
    assert len(same) == 0
    assert sentence(same) == "the model sees no difference between a and b"
    with pytest.raises(IndexError, match="there are 6"):
        explain(FEW, None, 6, 0)


def test_the_default_is_found_by_its_unset_layouts():
    assert default_config(FEW) == 5
    assert default_config(dots((PLAIN,) * 6, (ODD,) * 6)) is None


def test_terms_sum_to_the_difference_of_scores(tmp_path):
    graph = random_graph(tmp_path, 5)
    rows = cost_rows(graph)
    model = small_model(graph, rows)
    pairs = [(a, b) for a in range(0, 40, 3) for b in range(0, 40, 7)]
    assert check_sums(graph, rows, model, pairs) > 100
    with pytest.raises(DataError, match="other features"):
        explain(graph, model, 0, 1, cost_rows(graph, np.zeros((len(graph.opcode), 1))))


SAMPLE = [f for f in index(ROOT / "data" / "sample") if not f.tile and f.split != "test"]
SOME = [next(f for f in SAMPLE if f.collection == c) for c in dict.fromkeys(
    f.collection for f in SAMPLE)]  # fmt: skip


@pytest.mark.parametrize("file", SOME, ids=[file.collection for file in SOME])
def test_terms_sum_on_measured_graphs(file):
    graph, _, _ = deduplicate(read_graph(file))
    rows = cost_rows(graph)
    pairs = np.random.default_rng(0).integers(graph.configs, size=(12, 2))
    assert check_sums(graph, rows, small_model(graph, rows), pairs) > 0


@pytest.mark.parametrize("collection", LAYOUT_COLLECTIONS)
def test_terms_sum_on_every_sample_graph_with_the_committed_models(collection):
    model = load_model(model_stem(ROOT / "outputs" / "sample_run", collection, "cost_tables"))
    files = index(ROOT / "data" / "sample", [collection])
    for number, file in enumerate(files):
        graph = read_graph(file)
        rows = cost_rows(graph)
        order = np.argsort(predict(model, graph, rows, 1))
        pairs = [order[[-1, 0]], np.random.default_rng(number).integers(graph.configs, size=2)]
        assert check_sums(graph, rows, model, pairs) > 0, file.id
    assert {file.split for file in files} == set(SPLITS)


def test_terms_sum_on_a_graph_of_the_release():
    path = REAL / "npz" / "layout" / "xla" / "default" / "valid" / "unet_3d.4x4.bf16.npz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    file = GraphFile("layout:xla:default", "valid", "unet_3d.4x4.bf16", path)
    graph, _, _ = deduplicate(read_graph(file))
    rows = cost_rows(graph)
    some = np.random.default_rng(0).choice(graph.configs, 300, replace=False)
    model = fit([rows], [terms(graph, rows, some)], [graph.target[some]], LOG, trees=10, threads=1)
    order = np.argsort(graph.target)
    assert check_sums(graph, rows, model, [(order[-1], order[0]), (some[0], some[1])]) > 10
    table = explain(graph, model, int(order[-1]), int(order[0]), rows, 1)
    assert set(table["node"]) <= set(graph.config_nodes.tolist())
    assert 0 < len(neighbourhood(graph, table, 24)) <= 24


def test_the_neighbourhood_shows_who_copies_for_whom(values):
    values(lambda rows: (rows.kind == PAIR) * column(rows, "copied") * 3.0)
    part = neighbourhood(FEW, explain(FEW, None, 1, 0))
    assert sorted(part) == [0, 1, 2, 3, 4, 5]
    assert part.nodes[5]["adds"] == 3.0 and part.nodes[2]["adds"] == 0.0
    assert part.edges[2, 5] == {"adds": 3.0, "through": True}  # a tanh lies in between
    assert part.edges[2, 3] == {"adds": 0.0, "through": False}
    few = neighbourhood(FEW, explain(FEW, None, 1, 0), nodes=3)
    assert 5 in few and len(few) == 3
    assert len(neighbourhood(FEW, explain(FEW, None, 1, 1))) == 0


def test_pictures_say_what_they_show(values):
    values(lambda rows: (rows.kind == SLOT) * (1 - column(rows, "is_default")) * rows.elements)
    table = explain(FEW, None, 2, 3)
    bars = plot_terms(table, "2", "3", top=2)
    (axes,) = bars.axes
    assert [bar.get_width() for bar in axes.patches] == [128.0, 64.0, 32.0]
    assert axes.get_yticklabels()[-1].get_text() == "2 smaller ones together"
    assert "2 is predicted slower than 3: 4 terms add up to +224.000" in bars.get_suptitle()
    drawn = plot_neighbourhood(FEW, table)
    assert drawn.axes[0].get_title(loc="left").startswith("6 of 6 nodes hold 100%")
    empty = plot_neighbourhood(FEW, table.clear())
    assert empty.axes[0].get_title(loc="left").startswith("The two configurations do not differ")
    plt.close("all")


def test_the_file_to_explain_is_unseen_unless_named(tmp_path):
    for seed, split, layers in ((1, "train", 5), (2, "valid", 3), (3, "valid", 6)):
        arrays, _ = generate(seed, "nlp", "random", layers=layers, configs=20)
        save_npz(tmp_path / f"data/layout/nlp/random/{split}/mlp.s{seed}.npz", **arrays)
    run = open_run(tmp_path, str(tmp_path / "data"), "out")
    assert choose_file(run) is None
    graph = read_graph(run.files[0])
    model = small_model(graph, cost_rows(graph))
    save_model(model, run.out / "models" / "layout_nlp_random" / "cost_tables")
    assert choose_file(run).name == "mlp.s3"
    assert choose_file(run, "mlp.s1").split == "train"
    with pytest.raises(DataError, match="no layout graph 'mlp.s9'"):
        choose_file(run, "mlp.s9")
