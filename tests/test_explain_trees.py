"""Explanations of boosted trees: by hand for small trees, and on every tile graph of the sample."""

from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
import pytest
import xgboost
from hand_graphs import FEW
from sklearn.ensemble import HistGradientBoostingRegressor

from utils import ranking, saved_models
from utils.coding import read_graph
from utils.dataset import DataError, GraphFile, index
from utils.explain import explain, label, sentence
from utils.explain_plots import plot_terms
from utils.explain_trees import (
    ROUNDING,
    SAME,
    choose_tile,
    column_words,
    contributions,
    explain_trees,
)
from utils.feature_tables import feature_tables
from utils.files import save_npz
from utils.graph_stats import graph_statistics
from utils.model_files import model_stem
from utils.notebook import open_run
from utils.ranking import Ranker
from utils.schema import SPLITS
from utils.synthetic import tile_graph as generate
from utils.training import features_of

ROOT = Path(__file__).resolve().parent.parent
TILES = index(ROOT / "data" / "sample", ["tile:xla"])

# Two columns that are 0 or 1, each combination once, in this order.
SQUARE = np.array([(0, 0), (0, 1), (1, 0), (1, 1)], np.float32)
BOTH = (0.0, 0.0, 0.0, 1.0)  # 1 where both columns are 1
NAMES = ("tile_count", "tile_minor_bound")


def ranker_of(values, target, columns=NAMES, trees=1) -> Ranker:
    """Trees that reproduce `target` on the rows that they were trained on."""
    settings = {"max_depth": 3, "eta": 1.0 / trees, "reg_lambda": 0.0, "min_child_weight": 0.0,
                "base_score": 0.0, "nthread": 1}  # fmt: skip
    data = xgboost.DMatrix(values, label=target)
    return Ranker("rank_pairwise", tuple(columns), xgboost.train(settings, data, trees))


def lines(table) -> dict:
    """{column, or words of what is no column: adds}"""
    return {line["column"] or line["means"]: line["adds"] for line in table.to_dicts()}


def test_shapley_values_of_two_columns_that_count_together():
    """Known of a row of ones: nothing 1/4, one column 1/2, both 1. So each adds 3/8.

    Of (0, 1): nothing 1/4, the first 0, the second 1/2, both 0: the first adds -3/8, the second
    1/8. Of (0, 0): nothing 1/4, anything else 0: each adds -1/8.
    """
    ranker = ranker_of(SQUARE, BOTH)
    found = contributions(ranker.estimator, SQUARE)
    hand = [(-1, -1), (-3, 1), (1, -3), (3, 3)]
    np.testing.assert_allclose(found, np.array(hand) / 8, atol=1e-7)
    both = explain_trees(ranker, SQUARE, NAMES, 3, 0)
    assert lines(both) == pytest.approx({"tile_count": 1 / 2, "tile_minor_bound": 1 / 2})
    one = explain_trees(ranker, SQUARE, NAMES, 3, 1)
    assert one.row(0) == pytest.approx((3 / 4, "tile_count", "number of tiles", 0.0, 1.0))
    assert one.row(1) == pytest.approx((1 / 4, None, SAME, None, None)) and len(one) == 2


def test_columns_that_add_up_keep_their_own_shares():
    target = SQUARE @ (3.0, 5.0) - 2.0
    ranker = ranker_of(SQUARE, target)
    there = {(1, 0): 5.0, (2, 0): 3.0}
    for (a, b), adds in there.items():
        for sign, table in ((1, explain_trees(ranker, SQUARE, NAMES, a, b)),
                            (-1, explain_trees(ranker, SQUARE, NAMES, b, a))):  # fmt: skip
            assert table["adds"].to_list() == pytest.approx([sign * adds], abs=1e-6)
    table = explain_trees(ranker, SQUARE, NAMES, 1, 2)
    assert lines(table) == pytest.approx({"tile_count": -3.0, "tile_minor_bound": 5.0})
    assert table["column"].to_list() == ["tile_minor_bound", "tile_count"]  # the costliest first
    assert sentence(table) == (
        "a is slower than b by 2.000; the largest part is the minor-most bound, 1 instead of 0 "
        "(250% of the difference)"
    )
    assert label(table.row(1, named=True)) == "number of tiles: 1  to  0"


def test_the_order_of_columns_is_that_of_the_model():
    ranker = ranker_of(SQUARE, SQUARE @ (3.0, 5.0))
    wide = np.column_stack([np.arange(4), SQUARE[:, ::-1]])
    names = ("stat_nodes", *NAMES[::-1])
    table = explain_trees(ranker, wide, names, 1, 2)
    assert lines(table) == pytest.approx({"tile_count": -3.0, "tile_minor_bound": 5.0})
    with pytest.raises(DataError, match="feature columns missing: tile_count"):
        explain_trees(ranker, wide[:, :2], names[:2], 1, 2)


def test_a_value_that_is_not_there_is_null():
    values = SQUARE.copy()
    values[:2, 0] = np.nan
    ranker = ranker_of(values, SQUARE @ (3.0, 5.0))
    (line,) = explain_trees(ranker, values, NAMES, 2, 0).to_dicts()
    assert (line["in_b"], line["in_a"]) == (None, 1.0) and line["adds"] == pytest.approx(3.0)
    assert label(line) == "number of tiles: none  to  1"
    assert "tile_count" not in lines(explain_trees(ranker, values, NAMES, 1, 0))


def test_equal_rows_wrong_numbers_and_other_models():
    ranker = ranker_of(SQUARE, BOTH)
    same = explain_trees(ranker, SQUARE, NAMES, 2, 2)
    assert len(same) == 0
    assert sentence(same) == "the model sees no difference between a and b"
    with pytest.raises(IndexError, match="there are 4"):
        explain_trees(ranker, SQUARE, NAMES, 4, 0)
    hist = replace(ranker, model="hist_gbrt", estimator=HistGradientBoostingRegressor())
    with pytest.raises(DataError, match="hist_gbrt: only trees of XGBoost"):
        explain_trees(hist, SQUARE, NAMES, 1, 0)


def test_cost_tables_say_who_explains_a_tile_graph():
    file = GraphFile("tile:xla", "valid", "x", Path("x.npz"))
    for about, name in ((file, "x.npz"), (None, "this")):
        tile = replace(FEW, file=about, codes=None)
        with pytest.raises(DataError, match=rf"^{name}: a tile .* explain_trees\.explain_trees"):
            explain(tile, None, 0, 1)


def check_sums(score, explained, pairs) -> int:
    """Lines sum to the difference of scores, and rounding is no more than what float32 loses."""
    found = 0
    for a, b in pairs:
        table = explained(int(a), int(b))
        assert table["adds"].sum() == pytest.approx(score[a] - score[b], abs=1e-6)
        rounding = table.filter(pl.col("means") == ROUNDING)["adds"].sum()
        assert abs(rounding) < 4e-6
        assert table["adds"].to_list() == sorted(table["adds"], reverse=True)
        told = table.drop_nulls("column")
        assert told["column"].str.contains("^tile_").all()  # of its own graph, all is the same
        assert (told["means"] != told["column"]).all()
        found += len(table)
    return found


def test_lines_sum_on_every_tile_graph_of_the_sample():
    tables, labelled = [], []
    for file in TILES:
        graph = read_graph(file)
        tables.append(feature_tables(graph, graph_statistics(graph))[0])
        labelled.append(file.split == "train")
    values, names = zip(*map(features_of, tables))
    train = np.flatnonzero(labelled)
    number = np.repeat(train, [len(tables[i]) for i in train])
    ranker = ranking.fit(
        "rank_pairwise", np.concatenate([values[i] for i in train]), names[0],
        np.concatenate([tables[i]["target"].to_numpy() for i in train]), number, threads=1,
    )  # fmt: skip
    whole = ranker.estimator.trees_to_dataframe().set_index("ID")
    leaf = whole[whole["Feature"] == "Leaf"]["Gain"]  # a leaf's value
    for number, features in enumerate(values):
        score = ranking.predict(ranker, features, names[0], 1)
        order = np.argsort(score, kind="stable")
        pairs = [order[[-1, 0]], np.random.default_rng(number).integers(len(score), size=2)]

        def explained(a, b):
            return explain_trees(ranker, features, names[0], a, b, 1)

        assert check_sums(score, explained, pairs) > 0, TILES[number].id
        if number % 25 == 0:  # without rounding, the sum of the leaves, added in float64
            place = [names[0].index(name) for name in ranker.columns]
            data = xgboost.DMatrix(features[pairs[0]][:, place])
            where = ranker.estimator.predict(data, pred_leaf=True).astype(int)
            slow, fast = ([leaf[f"{t}-{i}"] for t, i in enumerate(line)] for line in where)
            parts = explained(*pairs[0]).filter(pl.col("means") != ROUNDING)["adds"]
            assert parts.sum() == pytest.approx(sum(slow) - sum(fast), abs=3e-7)
    assert {file.split for file in TILES} == set(SPLITS)


def test_lines_sum_on_every_tile_graph_with_the_committed_model():
    model = saved_models.load_model(
        model_stem(ROOT / "outputs" / "sample_run", "tile:xla", "rank_pairwise")
    )
    for file in TILES:
        graph = read_graph(file)
        score = model.score(graph)
        order = np.argsort(score)
        check_sums(score, lambda a, b: model.explain(graph, a, b), [order[[-1, 0]]])


def test_every_tile_column_has_words_of_its_own():
    table, _ = feature_tables(read_graph(TILES[0]))
    names = [name for name in table.columns if name.startswith(("tile_", "trans_"))]
    words = [column_words(name) for name in names]
    assert len(names) > 60 and not set(words) & set(names) and len(set(words)) == len(words)
    assert column_words("tile_output_bounds_0") == "output bound 0"
    assert column_words("tile_kernel_bounds_sum") == "sum of the kernel bounds"
    assert column_words("tile_third_tiles") == "number of tiles along the third-minor dimension"
    assert column_words("tile_rel_minor_bound") == "minor-most bound, log2 above the mean"
    assert column_words("node_byte_count") == "node_byte_count"


def test_the_picture_names_columns_and_values():
    ranker = ranker_of(SQUARE, SQUARE @ (3.0, 5.0))
    table = explain_trees(ranker, SQUARE, NAMES, 3, 0)
    (axes,) = plot_terms(table, "slow", "fast").axes
    told = [text.get_text() for text in axes.get_yticklabels()]
    assert told == ["minor-most bound: 0  to  1", "number of tiles: 0  to  1"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([5.0, 3.0])
    assert axes.get_xlabel() == "adds to score(slow) - score(fast); larger = slower"
    plt.close("all")


def test_the_tile_graph_to_explain_is_unseen_unless_named(tmp_path):
    for seed, split, configs in ((1, "train", 40), (2, "valid", 5), (3, "valid", 30)):
        arrays, _ = generate(seed, configs=configs)
        save_npz(tmp_path / f"data/tile/xla/{split}/k.s{seed}.npz", **arrays)
    run = open_run(tmp_path, str(tmp_path / "data"), "out")
    assert choose_tile(run) is None
    stem = model_stem(run.out, "tile:xla", "rank_pairwise")
    ranking.save_model(ranker_of(SQUARE, BOTH), stem, collection="tile:xla")
    assert choose_tile(run)[0].name == "k.s3" and choose_tile(run)[1] == stem
    assert choose_tile(run, "k.s1")[0].split == "train"
    with pytest.raises(DataError, match="no tile graph 'k.s9'"):
        choose_tile(run, "k.s9")
    assert choose_tile(replace(run, files=[])) is None
