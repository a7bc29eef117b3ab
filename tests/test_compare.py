import polars as pl
import pytest

from utils import benchmark, compare_plots, report
from utils.files import write_parquet


def table() -> pl.DataFrame:
    rows = []
    for nodes in (1000, 2000):
        for model, seconds, peak in (("cost_tables", 1.0, 20.0), ("gnn", 200.0, 400.0)):
            rows.append({
                "model": model, "nodes": nodes, "configs": 100, "config_nodes": 9, "threads": 2,
                "batch": 8 if model == "gnn" else None, "scored": 100, "disk_mb": 0.5,
                "imports_mb": 90.0, "peak_mb": peak, "memory_s": [seconds], "file_s": [seconds + 1],
                "memory_per_s": 100 / seconds * 1000 / nodes, "file_per_s": 100 / (seconds + 1),
            })  # fmt: skip
    return pl.DataFrame(rows)


def record(model, tau, seed=0, collection="layout:nlp:random", protocol="valid"):
    about = {"model": model, "tau": tau, "seed": seed, "fold_assignment": None}
    return about | {"collection": collection, "protocol": protocol}


RECORDS = [
    record("cost_tables", 0.5), record("cost_tables", 0.7, collection="layout:xla:random"),
    record("gnn", 0.3), record("gnn", 0.5, seed=1), record("gnn", 0.9, protocol="test"),
    record("gnn", 0.1, collection="tile:xla"), record("hist_gbrt", 0.9),
]  # fmt: skip


def test_points_share_their_collections():
    points = {row["model"]: row for row in compare_plots.tradeoff(RECORDS, table()).to_dicts()}
    assert list(points) == ["cost_tables", "gnn"]
    trees, network = points["cost_tables"], points["gnn"]
    assert trees["tau"] == 0.5 and trees["sd"] is None  # the gnn has no xla:random
    assert network["tau"] == pytest.approx(0.4) and network["sd"] == pytest.approx(0.02**0.5)
    assert trees["microseconds"] == pytest.approx(20_000) and trees["nodes"] == 2000
    assert len(compare_plots.tradeoff([], table())) == 0


def test_titles_say_what_the_pictures_show():
    figure = compare_plots.plot_tradeoff(compare_plots.tradeoff(RECORDS, table()))
    assert title_of(figure.axes[0]) == "cost_tables ranks best and costs least"
    ahead = compare_plots.tradeoff([*RECORDS[:2], record("gnn", 0.6)], table())
    found = compare_plots._finding(ahead)
    assert found == "gnn ranks best, by 0.100; cost_tables costs 200 times less"
    left, right = compare_plots.plot_speed(table()).axes
    assert title_of(left).startswith("From memory: trees at least 200.0 times")
    assert title_of(right).startswith("From a file: trees at least 100.5 times")
    compare_plots.plot_tradeoff(compare_plots.tradeoff([], table()))


def test_the_report_ends_with_speed_and_memory(tmp_path):
    write_parquet(tmp_path / benchmark.TABLE, table())
    text = report.write_report(tmp_path).read_text()
    assert "## Speed and memory" in text
    assert "| 2,000 | 100 | `gnn` | 0 | 0 | 400 | 0.5 | 8 |" in text
    assert "cost_tables scores 200.0 times as many a second as gnn from memory" in text


def title_of(axis) -> str:
    return axis.get_title() or axis.get_title(loc="left")
