"""What repeats in a collection say of the noise that rounds cannot show."""

import numpy as np
import polars as pl
import pytest
from scipy.stats import trim_mean
from test_ceiling import made, truth_of

from utils import executables, noise
from utils.ceiling import noise_ceiling
from utils.dataset import DataError
from utils.metrics import kendall_tau
from utils.noise import Executables, fit_executables, measurement_noise, repeat_differences

UNIT = 0.01  # noise of a measurement as its rounds show it


def graph_of(rng, extra: float, configs=150, repeats=4):
    """A graph whose file ends with some configurations once more, and its true log runtimes; the
    executables of a configuration differ by `extra` UNITs (Student's t, 3 degrees of freedom)."""
    config = np.concatenate([np.arange(configs), rng.permutation(np.arange(1, configs))[:repeats]])
    truth = truth_of("normal", rng, configs, spread=0.05)[config]
    one = extra * UNIT * rng.standard_t(3, len(truth)) / np.sqrt(3)
    blocks = rng.normal(size=(len(truth), 8))
    blocks *= UNIT / trim_mean(rng.normal(size=(5000, 8)), 0.2, axis=1).std()
    rounds = np.rint(np.exp(np.log(1e8) + (truth + one)[:, None] + blocks)).astype(np.int64)
    runtime = np.rint(trim_mean(rounds, 0.2, axis=1)).astype(np.int64)
    return made(runtime, rounds, config), truth


@pytest.mark.parametrize("extra", [0.0, 1.5])
def test_ceilings_of_a_collection_of_graphs_with_few_repeats(extra):
    errors = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        graphs, truths = zip(*(graph_of(rng, extra) for _ in range(24)))
        fit = fit_executables(np.concatenate([repeat_differences(g) for g in graphs]))
        oracle = np.mean([kendall_tau(g.target, t) for g, t in zip(graphs, truths)])
        for said in (fit, Executables()):
            errors.append(np.mean([noise_ceiling(g, said, draws=4) for g in graphs]) - oracle)
    pooled, alone = np.mean(errors[::2]), np.mean(errors[1::2])
    assert abs(pooled) < 0.02
    assert (alone > 0.04) == (extra > 0)  # rounds alone promise too much


def test_a_fit_gives_back_what_it_was_drawn_from():
    one, other = 1.4 * np.random.default_rng(0).standard_t(4, (2, 4000))
    drawn = (one - other) / np.sqrt(2)
    scale, dof = fit_executables(drawn)
    assert scale == pytest.approx(1.4, rel=0.05) and 3 <= dof <= 5
    assert fit_executables(drawn[: noise.ENOUGH_REPEATS - 1]) == (1.0, np.inf)
    assert fit_executables(drawn - 1.5) == pytest.approx(fit_executables(drawn))  # ranks nothing
    normal = np.random.default_rng(0).normal(scale=0.8, size=4000)
    scale, dof = fit_executables(normal)
    assert scale == pytest.approx(0.8, rel=0.05) and dof >= 20
    assert fit_executables(np.zeros(100)).scale == pytest.approx(np.exp(noise.SCALES[0]), rel=1e-3)


def test_differences_are_those_of_repeats_but_of_the_first_configuration():
    config = np.array([5, 1, 2, 1, 5, 2, 1])
    runtime = np.array([100, 200, 300, 220, 90, 270, 190]) * 10**6
    wobble = 1 + 1e-3 * np.array([1, -1, 2, -2, 1, -1, 0, 0])
    rounds = np.rint(runtime[:, None] * wobble).astype(np.int64)
    graph = made(runtime, rounds, config)
    found = repeat_differences(graph)
    scale = measurement_noise(graph, Executables()).scale
    first, again = np.array([1, 1, 2]), np.array([3, 6, 5])
    want = np.log(runtime[again] / runtime[first]) / np.hypot(scale[again], scale[first])
    np.testing.assert_allclose(found, want, rtol=1e-12)
    assert repeat_differences(made(runtime, config=config)).size == 0
    assert repeat_differences(made(0 * runtime, rounds, config)).size == 0


def test_executables_widen_the_noise_and_fatten_its_tails():
    graph, _ = graph_of(np.random.default_rng(1), 0.0)
    plain, wide = (measurement_noise(graph, e) for e in (Executables(), Executables(1.5, 3.0)))
    np.testing.assert_allclose(wide.scale, 1.5 * plain.scale)
    assert (wide.dof == 3.0).all() and (plain.dof > 3.0).all()


def test_the_table_has_every_collection(monkeypatch, tmp_path):
    rng = np.random.default_rng(2)
    graphs = {f"g{i}": graph_of(rng, 1.5)[0] for i in range(9)}

    class File:
        collection, split, ours = "layout:nlp:random", "train", True

        def __init__(self, name):
            self.name = name

    class Run:
        out, dask, data = tmp_path, "", tmp_path
        collections = ["layout:nlp:random", "tile:xla"]
        files = [File(name) for name in graphs]

    monkeypatch.setattr(executables, "cached_graph", lambda run, file: graphs[file.name])
    table = executables.fit_collections(Run)
    assert table["collection"].to_list() == Run.collections
    assert table["repeats"].to_list() == [36, 0] and table["median"].to_list()[1] is None
    drawn = np.concatenate([repeat_differences(g) for g in graphs.values()])
    assert table["median"][0] == np.median(drawn)
    assert table["beyond_2"][0] == np.mean(np.abs(drawn - np.median(drawn)) > 2) > 0.05
    together = fit_executables(drawn)
    known = executables.of_collections(pl.read_parquet(tmp_path / "tables" / executables.TABLE))
    assert known == {"layout:nlp:random": together, "tile:xla": Executables()}
    assert executables.read_executables(Run) == known
    Run.collections = ["layout:xla:random"]
    with pytest.raises(DataError, match="nothing of layout:xla:random, run notebook 01 again"):
        executables.read_executables(Run)
