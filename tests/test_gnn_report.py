import polars as pl
import pytest

from utils import gnn_report
from utils.evaluate import SCHEMA
from utils.files import write_json, write_parquet
from utils.notebook import Run

COLLECTION = "layout:nlp:random"


@pytest.fixture
def run(tmp_path):
    """Two fits of a network and one of another model."""
    run = Run(tmp_path, tmp_path, tmp_path, [], (COLLECTION,))
    folder = tmp_path / "tables" / "predictions" / "layout_nlp_random"
    taus = {"gnn": [None, 0.4, 0.3], "gnn__extra": [0.5, 0.6, 0.7], "rank_pairwise": []}
    for model, values in taus.items():
        history = [{"epoch": i + 1, "loss": 0.1, "tau": tau} for i, tau in enumerate(values)]
        about = {"history": history, "epochs": 2, "held_out": ["lstm", "mlp"], "fit_s": 3.0}
        write_json(folder / model / "valid_0_0.json", about)
        write_parquet(folder / model / "valid_0_0.parquet", pl.DataFrame({"a": [1]}))
    return run


def test_trainings_are_read_from_what_fits_noted(run):
    noted = gnn_report.histories(run)
    table = gnn_report.trainings(noted)
    assert table["model"].to_list() == ["gnn", "gnn/extra"]
    assert table["held_out_tau"].to_list() == [0.4, 0.7]
    assert table["held_out"].to_list() == ["lstm, mlp"] * 2 and table["of"].to_list() == [3, 3]
    assert gnn_report.tried(table).rows() == [("gnn", 0.4, 0.4), ("gnn/extra", 0.7, 0.7)]
    later = table.with_columns(seed=pl.lit(1, pl.Int64), held_out_tau=pl.lit(0.9))
    other = table.with_columns(collection=pl.lit("layout:xla:random"), held_out_tau=pl.lit(0.5))
    tiles = table.with_columns(collection=pl.lit("tile:xla"), held_out_tau=pl.lit(0.1))
    wide = gnn_report.tried(pl.concat([table, later, other, tiles]))
    assert wide.columns == ["model", "nlp:random", "xla:random", "tile:xla", "layout mean"]
    assert wide["layout mean"].to_list() == pytest.approx([0.45, 0.6])
    figure = gnn_report.plot_curves(noted)
    assert title_of(figure.axes[1]) == "best after 2 epochs (median)"
    assert len(gnn_report.trainings([])) == 0


def scores(*rows) -> pl.DataFrame:
    table = pl.DataFrame(rows, ["model", "name", "tau"], orient="row").with_columns(
        collection=pl.lit(COLLECTION), protocol=pl.lit("valid"), split=pl.lit("valid"),
        seed=0, rankable=True, fold_assignment=pl.lit(None, pl.Int64),
    )  # fmt: skip
    assert set(table.columns) <= set(SCHEMA)
    return table


def test_a_weak_opponent_is_named():
    table = scores(
        ("gnn", "a", 0.5), ("gnn", "b", 0.7), ("gnn/extra", "a", 0.1), ("gnn/extra", "b", 0.2),
        ("hist_gbrt/config_only", "a", 0.4), ("hist_gbrt/config_only", "b", 0.4),
    )  # fmt: skip
    assert gnn_report.strength(table) == [
        "layout:nlp:random: gnn 0.600, ahead of hist_gbrt/config_only 0.400",
        "layout:nlp:random: gnn/extra 0.150, NOT ahead of hist_gbrt/config_only 0.400",
    ]
    assert "no graph that both" in gnn_report.strength(table[:2])[0]


def test_bars_count_where_a_network_leads():
    table = scores(("gnn", "a", 0.5), ("cost_tables", "a", 0.4), ("byte_count", "a", 0.1))
    title = title_of(gnn_report.model_bars(table, ("gnn", "cost_tables")).axes[0])
    assert title == "A network is the best of these in 1 of 1 collections"


def title_of(axis) -> str:
    return axis.get_title() or axis.get_title(loc="left")
