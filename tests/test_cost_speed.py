import numpy as np

from utils import cost_speed, ranking
from utils.cost_rows import score_rows, terms
from utils.cost_study import FULL, fit_variant
from utils.cost_tables import LINEAR
from utils.layout_features import layout_features


def test_a_large_graph_scores_like_its_terms(tmp_path):
    graph = cost_speed.large_graph(tmp_path, configs=1000, nodes=40)
    codes = graph.graph.codes
    assert codes.shape[0] == 1000 and 30 <= codes.shape[1] <= 50 and codes.flags.f_contiguous
    value = np.random.default_rng(0).standard_normal(len(graph.rows.kind))
    naive = value[terms(graph.graph, graph.rows)].sum(1)
    np.testing.assert_allclose(score_rows(graph.graph, graph.rows, value), naive, atol=1e-9)


def test_speed_counts_all_that_was_scored(monkeypatch):
    clock = iter([0.0, 4.0, 10.0, 12.0, 20.0, 25.0])
    monkeypatch.setattr(cost_speed.time, "perf_counter", lambda: next(clock))
    assert cost_speed.speed(lambda: [np.zeros(300), np.zeros(200)], repeats=3) == 500 / 2.0


def test_every_way_scores_the_graphs(tmp_path, monkeypatch):
    graph = cost_speed.large_graph(tmp_path, configs=60, nodes=6)
    target = score_rows(graph.graph, graph.rows, np.arange(len(graph.rows.kind)) ** 2.0)
    graph.graph.runtime[:] = target
    model = fit_variant(FULL, [graph], LINEAR, threads=1)
    table = layout_features(graph.graph)
    more = np.column_stack([table.to_numpy(), np.arange(60)]).astype(np.float32)
    names, group = (*table.columns, "stat_depth"), np.zeros(60, int)
    ranker = ranking.fit("rank_pairwise", more, names, target, group, threads=1)
    assert "stat_depth" in ranker.columns  # which a graph alone has not
    scored = []
    monkeypatch.setattr(cost_speed, "FIRST", 20)
    monkeypatch.setattr(cost_speed, "speed", lambda work: scored.append(work()) or 1.0)
    found = cost_speed.speeds(model, ranker, [graph, graph], 1)
    assert len(found) == len(scored) == 5
    sums, trees, described, given, built = (one[0] for one in scored)
    assert (sums == trees).all() and (sums == described).all() and len(sums) == 60
    assert (given == built).all() and len(given) == 20
    assert all(len(one) == 2 for one in scored)
