"""The noise ceiling on synthetic measurements whose true runtimes are known."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import trim_mean

from utils import ceiling, noise
from utils.coding import Graph
from utils.dataset import GraphFile, read_graph
from utils.metrics import kendall_tau, tile_score

ROOT = Path(__file__).resolve().parents[1]
REAL = Path(os.environ.get("TPUGRAPHS_DIR", ROOT.parent / "shared" / "tpugraphs"))
SHAPES = {
    "normal": lambda rng, c: rng.normal(size=c),
    "uniform": lambda rng, c: rng.random(c),
    "lognormal": lambda rng, c: np.exp(0.8 * rng.normal(size=c)),
    "two humps": lambda rng, c: np.where(rng.random(c) < 0.4, 0, 4) + 0.5 * rng.normal(size=c),
    "plateaus": lambda rng, c: rng.choice([0, 1.0, 2.5, 4, 7], c),
    "spike and tail": lambda rng, c: np.where(rng.random(c) < 0.5, 0, rng.exponential(size=c)),
}


def lower_half(rounds):
    return np.sort(rounds, axis=1)[:, : (rounds.shape[1] + 1) // 2].mean(1)


def trimmed(rounds):
    return trim_mean(rounds, 0.2, axis=1)


def median(rounds):
    return np.median(rounds, axis=1)


def made(runtime, rounds=None, config=None, collection="layout:xla:random"):
    """A graph of the given measurements; `config`: number of the configuration of each row."""
    c = len(runtime)
    feat = np.zeros((c, 24), np.float32)
    feat[:, 0] = np.arange(c) if config is None else config
    return Graph(
        GraphFile(collection, "train", "x", Path("x")), np.zeros((2, 140), np.float32),
        np.zeros(2, np.uint8), np.zeros((0, 2), np.int64), runtime, rounds, config_feat=feat,
        normalizer=np.full(c, 7) if collection == "tile:xla" else None)


def truth_of(shape, rng, c, spread=0.02):
    values = SHAPES[shape](rng, c)
    return spread * (values - values.mean()) / values.std()


def measured(truth, ratio, rng, r=8, statistic=lower_half, tails="normal"):
    """Runtimes and rounds whose noise is the sd of `truth` / `ratio`."""
    def draw(shape):
        return rng.standard_t(4, shape) if tails == "t" else rng.normal(size=shape)

    unit = statistic(draw((5000, r))).std()
    logs = np.log(1e8) + truth[:, None] + draw((len(truth), r)) / unit * truth.std() / ratio
    rounds = np.rint(np.exp(logs)).astype(np.int64)
    return np.rint(statistic(rounds)).astype(np.int64), rounds


@pytest.mark.parametrize("ratio", [2, 4, 12, 40])
@pytest.mark.parametrize("shape", ["normal", "uniform", "lognormal", "two humps"])
def test_within_two_hundredths_of_the_truth(shape, ratio):
    errors = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = truth_of(shape, rng, 1000)
        runtime, rounds = measured(truth, ratio, rng)
        estimate = ceiling.noise_ceiling(made(runtime, rounds), draws=8)
        errors.append(estimate - kendall_tau(truth, runtime))
    assert abs(np.mean(errors)) < 0.02, errors


@pytest.mark.parametrize("shape", ["plateaus", "spike and tail"])
def test_equal_true_runtimes_are_seen_where_the_noise_allows(shape):
    errors = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = truth_of(shape, rng, 1000)
        runtime, rounds = measured(truth, 20, rng)
        estimate = ceiling.noise_ceiling(made(runtime, rounds), draws=8)
        errors.append(estimate - kendall_tau(truth, runtime))
    assert abs(np.mean(errors)) < 0.02, errors


@pytest.mark.parametrize("statistic, r, tails", [
    (trimmed, 8, "normal"), (median, 8, "normal"), (lower_half, 4, "normal"), (lower_half, 8, "t")])
def test_other_statistics_counts_of_rounds_and_tails(statistic, r, tails):
    errors = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        truth = truth_of("normal", rng, 1000)
        runtime, rounds = measured(truth, 4, rng, r, statistic, tails)
        estimate = ceiling.noise_ceiling(made(runtime, rounds), draws=8)
        errors.append(estimate - kendall_tau(truth, runtime))
    assert abs(np.mean(errors)) < 0.02, errors


@pytest.mark.parametrize("ratio", [3, 10])
def test_from_repeated_configurations(ratio):
    errors = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        config = np.concatenate([np.arange(700), rng.integers(0, 150, 300)])
        truth = truth_of("uniform", rng, 700)[config]
        error = truth.std() / ratio * rng.normal(size=1000)
        runtime = np.rint(np.exp(np.log(1e8) + truth + error)).astype(np.int64)
        estimate = ceiling.noise_ceiling(made(runtime, config=config), draws=8)
        errors.append(estimate - kendall_tau(truth, runtime))
    assert abs(np.mean(errors)) < 0.02, errors


def test_compile_noise_that_rounds_cannot_see_widens_the_noise():
    rng = np.random.default_rng(0)
    config = np.concatenate([np.arange(600), np.arange(200)])
    truth = truth_of("normal", rng, 600)[config]
    compiled = truth + 0.008 * rng.normal(size=800)  # another value for each compilation
    runtime, rounds = measured(compiled, 20, rng)
    both = made(runtime, rounds, config)
    assert abs(ceiling.noise_ceiling(both) - kendall_tau(truth, runtime)) < 0.03
    only_rounds = ceiling.noise_ceiling(made(runtime, rounds))
    assert only_rounds - kendall_tau(truth, runtime) > 0.1


def test_tile_ceiling_is_the_oracles_tile_score():
    errors = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        truth = truth_of("normal", rng, 120, spread=0.05)
        runtime, rounds = measured(truth, 2, rng)
        graph = made(runtime, rounds, collection="tile:xla")
        oracle = tile_score(runtime.astype(float), truth)
        errors.append(ceiling.noise_ceiling(graph, draws=64) - oracle)
    assert abs(np.mean(errors)) < 0.01 and max(map(abs, errors)) < 0.03, errors


def test_nothing_but_noise_has_no_ceiling_to_speak_of():
    rng = np.random.default_rng(0)
    estimates = []
    for _ in range(4):  # a spread of a fifth of the noise can't be told from none: tau up to .25
        runtime, rounds = measured(1e-9 * rng.normal(size=1000), 1e-6, rng)
        estimates.append(ceiling.noise_ceiling(made(runtime, rounds)))
    assert np.mean(estimates) < 0.25, estimates
    one = made(runtime[:30], config=np.zeros(30))
    assert ceiling.noise_ceiling(one) == 0.0  # one configuration: an oracle can't rank it


def test_unknown_where_nothing_was_measured_twice():
    runtime = np.arange(1, 101) * 1000
    assert ceiling.noise_ceiling(made(runtime)) is None
    assert ceiling.repeatability(made(runtime)) is None
    assert ceiling.noise_ceiling(made(runtime * 0, np.zeros((100, 8), np.int64))) is None


def test_same_seed_same_ceiling():
    rng = np.random.default_rng(0)
    runtime, rounds = measured(truth_of("normal", rng, 300), 2, rng)
    graph = made(runtime, rounds)
    assert ceiling.noise_ceiling(graph) == ceiling.noise_ceiling(graph)


def test_noise_scale_is_the_sd_of_the_statistic():
    rng = np.random.default_rng(0)
    truth = truth_of("normal", rng, 3000)
    for statistic in (lower_half, median, trimmed):
        runtime, rounds = measured(truth, 4, rng, statistic=statistic)
        found = noise.measurement_noise(made(runtime, rounds))
        assert np.sqrt(np.mean(found.scale**2)) == pytest.approx(truth.std() / 4, rel=0.06)


def test_noise_that_grows_with_the_runtime_is_seen():
    rng = np.random.default_rng(0)
    config = np.repeat(np.arange(1000), 2)
    level = config / 1000
    runtime = np.rint(1e8 * np.exp(level + 1e-3 * np.exp(2 * level) * rng.normal(size=2000)))
    found = noise.measurement_noise(made(runtime.astype(np.int64), config=config))
    slow, fast = found.scale[config > 900].mean(), found.scale[config < 100].mean()
    assert slow / fast == pytest.approx(np.exp(1.8), rel=0.2)
    assert found.scale.mean() == pytest.approx(1e-3 * np.exp(2 * level).mean(), rel=0.1)


def test_variances_are_shrunk_as_far_as_they_agree():
    rng = np.random.default_rng(0)
    dof = np.full(4000, 7.0)
    equal = noise.shrink(rng.random(4000), rng.chisquare(7, 4000) / 7, dof)
    np.testing.assert_allclose(equal.scale, 1, rtol=0.03)
    true = 5 / rng.chisquare(5, 4000)  # scaled inverse chi-square, 5 degrees of freedom
    mixed = noise.shrink(rng.random(4000), true * rng.chisquare(7, 4000) / 7, dof)
    assert mixed.dof[0] - 7 == pytest.approx(5, rel=0.25)
    assert np.corrcoef(np.log(mixed.scale**2), np.log(true))[0, 1] > 0.7


def test_the_statistic_is_recognised():
    rounds = np.random.default_rng(0).integers(1000, 2000, (50, 8))
    for statistic in (trimmed, lower_half, median, lambda x: x.min(1), lambda x: x.mean(1)):
        found = noise.round_statistic(rounds, np.rint(statistic(rounds)))
        np.testing.assert_array_equal(found(rounds), statistic(rounds))


def test_repeatability_by_hand():
    rounds = np.array([[1, 1, 1, 1], [2, 3, 2, 3], [3, 2, 3, 2], [4, 4, 4, 4]]) * 100
    assert ceiling.repeatability(made(rounds.min(1), rounds)) == pytest.approx(4 / 6)
    config = np.array([0, 0, 1, 1, 2, 2, 3])
    runtime = np.array([10, 10, 20, 30, 30, 20, 99])
    assert ceiling.repeatability(made(runtime, config=config)) == pytest.approx(1 / 3)


def test_real_files():
    base = REAL / "npz" / "layout" / "xla" / "default"
    if not base.exists():
        pytest.skip(f"no real files in {REAL}: set TPUGRAPHS_DIR")
    file = GraphFile("layout:xla:default", "valid", "u", base / "valid" / "unet_3d.4x4.bf16.npz")
    graph = read_graph(file)
    # identical configurations differ by sd 1.6e-5
    assert noise.measurement_noise(graph).scale.mean() == pytest.approx(1.6e-5, rel=0.05)
    assert 0.3 < ceiling.noise_ceiling(graph) < 0.6
