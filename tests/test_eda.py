"""Descriptions of graphs against cases worked by hand."""

import matplotlib
import numpy as np
import polars as pl
import pytest

from utils import eda, eda_plots
from utils.dataset import deduplicate, read_graph
from utils.notebook import open_run
from utils.synthetic import write_data

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder, graphs={"train": 2, "valid": 1, "test": 1}, configs=60)
    return open_run(folder, str(folder), str(folder / "out"))


def test_layout_choice_by_hand():
    def layout(*values):
        return [*values, *[-1] * (6 - len(values))]

    rows = np.array([
        layout() + layout(1, 0) + layout(0, 1),
        layout(5, 4, 3, 2, 1, 0) + layout(4, 0) + layout(0),
        layout(3, 2, 1) + layout(2, 1, 0) + layout(0, 1, 2, 3),
    ], np.int8)
    assert eda.layout_choice(rows).tolist() == [[0, 1, 2], [1, 2, 1], [2, 1, 2]]


def test_uses_of_rows_add_up(run):
    graph = read_graph(run.files[0])
    uses = eda.row_uses(graph)
    per_node = np.add.reduceat(uses, graph.row_start[:-1])
    assert (per_node == graph.configs).all()
    j = len(graph.config_nodes) - 1
    last = graph.row_start[j]
    assert uses[last] == (graph.codes[:, j] == 0).sum()


def test_a_row_says_what_the_file_holds(run):
    for file in run.files:
        graph = read_graph(file)
        row = eda.describe(graph)
        assert (row["collection"], row["split"], row["name"]) == (
            file.collection, file.split, file.name)
        assert row["nodes"] == len(graph.node_feat) and row["edges"] == len(graph.edges)
        assert row["configs"] == 60 and row["distinct"] == deduplicate(graph)[0].configs
        assert (row["config_nodes"] is None) == file.tile
        if file.split == "test":
            values = [row[k] for k in ("runtime_min_ns", "spread", "ceiling", "repeatability")]
            assert values == [None] * 4
        else:
            assert row["spread"] == pytest.approx(graph.target.max() / graph.target.min())
            assert row["curve"][0] == 1 and row["curve"][-1] == pytest.approx(row["spread"])
            assert row["runtime_min_ns"] == graph.runtime.min()
            assert 0.5 < row["repeatability"] <= 1 and 0.5 < row["ceiling"] <= 1


def test_counts_add_up(run):
    graph = read_graph(run.files[0])
    counts = pl.DataFrame(eda.count_values(graph), schema=eda.COUNT_COLUMNS, orient="row")
    total = dict(counts.group_by("what").agg(pl.col("count").sum()).iter_rows())
    pairs = graph.configs * len(graph.config_nodes)
    assert total == {
        "operation": len(graph.opcode), "configurable": len(graph.config_nodes),
        "output": pairs, "input": pairs, "kernel": pairs, "rows": len(graph.config_nodes)}


def test_the_run_is_written_and_described_once(run, monkeypatch):
    graphs, counts, curves = eda.describe_run(run)
    assert graphs.columns == list(eda.GRAPH_COLUMNS) and len(graphs) == len(run.files) == 20
    assert graphs.schema["ceiling"] == pl.Float64
    assert graphs.equals(pl.read_parquet(run.out / "tables" / "graphs.parquet"))
    labelled = graphs.filter(pl.col("split") != "test")
    assert len(curves) == len(labelled) * eda.CURVE_POINTS
    assert curves.filter(pl.col("quantile") == 0)["slowdown"].to_list() == [1.0] * len(labelled)

    monkeypatch.setattr(eda, "cached_graph", lambda run, file: pytest.fail("read again"))
    again = eda.describe_run(run)
    assert all(a.equals(b) for a, b in zip(again, (graphs, counts, curves)))


def test_summary_and_shares(run):
    graphs, counts, _ = eda.describe_run(run)
    table = eda.summary(graphs)
    assert table["collection"].to_list() == list(run.collections)
    assert table.select("train", "valid", "test").rows() == [(2, 1, 1)] * 5
    sums = eda.shares(counts, "operation").group_by("collection").agg(pl.col("share").sum())
    np.testing.assert_allclose(sums["share"], 1)
    assert eda.shares(counts, "operation", most=3)["value"].n_unique() == 3
    two = pl.DataFrame({"collection": ["a", "a", "a"], "what": ["w"] * 3, "value": ["x", "y", "x"],
                        "count": [1, 2, 1]})
    assert eda.shares(two, "w").rows() == [("a", "x", 0.5), ("a", "y", 0.5)]


def title(figure):
    return figure.get_suptitle() or figure.axes[0].get_title(loc="left") or (
        figure.axes[0].get_title())


def test_titles_state_what_the_data_say(run):
    graphs, counts, curves = eda.describe_run(run)
    text = title(eda_plots.plot_spread(graphs))
    assert f"{graphs['spread'].median():.2f} times" in text
    assert f"{len(graphs)} graphs" in title(eda_plots.plot_sizes(graphs))
    assert "repeat a configuration" in title(eda_plots.plot_repeats(graphs))
    layout = graphs.filter(pl.col("collection") != "tile:xla")
    assert f"score {layout['ceiling'].median():.2f}" in title(eda_plots.plot_ceiling(graphs))
    assert "tiles tend to be faster" in title(eda_plots.plot_tiles(run))
    graph = eda_plots.smallest_graph(run)
    assert f"{len(graph.opcode)} nodes" in title(eda_plots.draw_graph(graph))
    assert len(graph.opcode) >= 12
    for figure in (eda_plots.plot_curves(curves), eda_plots.plot_operations(counts),
                   eda_plots.plot_layouts(counts), eda_plots.plot_rows(counts)):
        assert title(figure)
    matplotlib.pyplot.close("all")


def test_pictures_of_nothing_say_why(run):
    graphs, counts, curves = eda.describe_run(run)
    tile = pl.col("collection") == "tile:xla"
    test = graphs.filter(pl.col("split") == "test")
    for figure, reason in [
        (eda_plots.plot_spread(test), "No labelled graph"),
        (eda_plots.plot_curves(curves.head(0)), "No labelled graph"),
        (eda_plots.plot_ceiling(test), "Nothing was measured twice"),
        (eda_plots.plot_layouts(counts.filter(tile)), "No layout collection"),
        (eda_plots.plot_rows(counts.filter(tile)), "No layout collection"),
    ]:
        assert reason in figure.axes[0].texts[0].get_text()
    matplotlib.pyplot.close("all")
