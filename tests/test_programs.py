"""The zoo of programs: what it must contain, and values of a few programs."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from utils.xla import jaxprs  # noqa: E402
from utils.xla.zoo import parse_name, training_step  # noqa: E402

FOLDER = Path(__file__).resolve().parents[1] / "data" / "programs"


def load(stem: str):
    spec = importlib.util.spec_from_file_location(stem, FOLDER / f"{stem}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ZOO = {stem: load(stem) for stem in ("nlp", "vision")}
PROGRAMS = {name: (f, args) for zoo in ZOO.values() for name, f, args in zoo.programs()}
SPLIT = {name: split for zoo in ZOO.values() for name, split in zoo.SPLIT.items()}
SOURCE = {family: source for zoo in ZOO.values() for family, source in zoo.SOURCE.items()}


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def source_of(name: str) -> str:
    return SOURCE[parse_name(name)[0]]


def test_names_are_unique_well_formed_and_all_assigned():
    yielded = [name for zoo in ZOO.values() for name, _, _ in zoo.programs()]
    assert len(yielded) == len(set(yielded))
    assert set(yielded) == set(SPLIT)
    assert all(re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+", name) for name in yielded)
    # A family is defined once: the same name in two files would share its split and source.
    assert len(SOURCE) == sum(len(zoo.SOURCE) for zoo in ZOO.values())
    assert set(SOURCE) == {parse_name(name)[0] for name in yielded}


@pytest.mark.parametrize("source", ["nlp", "xla"])
def test_splits_hold_enough_programs_and_families_that_train_never_saw(source):
    counts = Counter(SPLIT[name] for name in SPLIT if source_of(name) == source)
    assert sum(counts.values()) >= 32
    assert counts["train"] >= 24 and counts["valid"] >= 4 and counts["test"] >= 4
    seen = {parse_name(name)[0] for name, split in SPLIT.items() if split == "train"}
    for split in ("valid", "test"):
        families = [
            parse_name(name)[0]
            for name in SPLIT
            if SPLIT[name] == split and source_of(name) == source
        ]
        assert sum(family not in seen for family in families) >= len(families) / 2


def test_many_families_and_training_steps_of_at_least_four():
    assert len(SOURCE) >= 14
    assert len({parse_name(name)[0] for name in SPLIT if parse_name(name)[1]}) >= 4


def test_every_program_can_be_configured_and_is_of_moderate_size():
    for name, (function, args) in PROGRAMS.items():
        program = jaxprs.trace(name, function, args)
        assert 4 <= len(program.operations) <= 40, name
        assert program.loops == 0, name
        module = jaxprs.hlo_module(jaxprs.unconstrained(program), program.args)
        equations, _ = jaxprs.configurable_nodes(program, module)
        assert len(equations) >= 4, name
        assert 30 <= sum(len(c.instructions) for c in module.computations) <= 350, name


def test_arguments_are_the_same_on_every_call_and_of_moderate_size():
    again = {name: args for zoo in ZOO.values() for name, _, args in zoo.programs()}
    for name, (_, args) in PROGRAMS.items():
        for a, b in zip(args, again[name], strict=True):
            assert a.dtype in (np.float32, np.int32), name
            np.testing.assert_array_equal(a, b)
            assert a.dtype == np.int32 or np.abs(a).max() < 6, name


def test_a_training_step_returns_the_loss_and_a_new_value_of_every_weight():
    for name, (function, args) in PROGRAMS.items():
        if parse_name(name)[1]:
            loss, *weights = jax.eval_shape(function, *args)
            assert loss.shape == ()
            # The last arguments are the weights.
            old = [a.shape for a in args[len(args) - len(weights) :]]
            assert [w.shape for w in weights] == old, name


def test_shapes_are_and_are_not_multiples_of_8_16_and_128():
    sizes = {n for _, args in PROGRAMS.values() for a in args for n in a.shape}
    for multiple in (8, 16, 128):
        assert any(n % multiple == 0 for n in sizes)
        assert any(n > multiple and n % multiple for n in sizes)


def test_the_perceptron_equals_numpy():
    function, (x, *weights) = PROGRAMS["mlp.b500d130f100l4"]
    y = x.astype(np.float64)
    for k in range(0, 8, 2):
        y = np.maximum(y @ weights[k] + weights[k + 1], 0)
    y = y @ weights[8] + weights[9]
    close(jax.jit(function)(x, *weights), y)


def test_attention_equals_numpy_and_its_weights_sum_to_one():
    function, (x, w_qkv, w_out) = PROGRAMS["attention.b3s100d60h6"]
    q, k, v = np.split(x.astype(np.float64) @ w_qkv, 3, axis=-1)
    want = np.empty_like(q)
    for h in range(6):
        part = slice(10 * h, 10 * h + 10)
        scores = np.exp(q[..., part] @ k[..., part].swapaxes(1, 2) / np.sqrt(10))
        want[..., part] = scores / scores.sum(-1, keepdims=True) @ v[..., part]
    close(jax.jit(function)(x, w_qkv, w_out), want @ w_out)
    # Rows of the softmax sum to one: values that are all the same come out unchanged.
    attend = ZOO["nlp"].attend
    q, k = np.random.default_rng(0).standard_normal((2, 2, 3, 7, 5)).astype(np.float32)
    v = np.full((2, 3, 7, 4), 2.5, np.float32)
    for causal in (False, True):
        close(jax.jit(attend, static_argnums=3)(q, k, v, causal), 2.5)


def test_the_decoder_sees_no_later_position():
    function, (x, *weights) = PROGRAMS["decoder.b4s40d80h5g5"]
    changed = x.copy()
    changed[:, 30:] += 1
    function = jax.jit(function)
    before, after = np.asarray(function(x, *weights)), np.asarray(function(changed, *weights))
    close(after[:, :30], before[:, :30])
    assert np.abs(after[:, 30:] - before[:, 30:]).max() > 0.1


def test_retention_in_chunks_equals_the_recurrence():
    forward, _, _ = ZOO["nlp"].retention(b=2, s=12, d=8, h=2, n=4)
    rng = np.random.default_rng(1)
    x, *w = rng.standard_normal((2, 12, 8)), *rng.standard_normal((5, 8, 8)) / 3
    q, k, v = ((x @ m).reshape(2, 12, 2, 4) for m in w[:3])
    state, decay, y = np.zeros((2, 2, 4, 4)), 1 - 2.0 ** (-3 - np.arange(2)), []
    for t in range(12):
        state = state * decay[:, None, None] + k[:, t, :, :, None] * v[:, t, :, None, :]
        y.append(np.einsum("bhc,bhce->bhe", q[:, t], state) / 2)
    gate = x @ w[3]
    want = (np.stack(y, 1).reshape(2, 12, 8) * gate / (1 + np.exp(-gate))) @ w[4]
    close(jax.jit(forward)(x, *w), want)


def test_the_lstm_equals_numpy():
    function, (x, w_in, w_state) = PROGRAMS["lstm.b64t5d64u64"]
    state = cell = np.zeros((64, 64))
    for t in range(5):
        gates = x[:, t].astype(np.float64) @ w_in + state @ w_state
        new, forget, write, read = np.split(gates, 4, axis=-1)
        forget, write, read = (1 / (1 + np.exp(-z)) for z in (forget, write, read))
        cell = forget * cell + write * np.tanh(new)
        state = read * np.tanh(cell)
    close(jax.jit(function)(x, w_in, w_state)[:, -1], state)


def test_shifted_products_equal_a_depthwise_convolution():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 7, 7, 3)).astype(np.float32)
    kernel = rng.standard_normal((9, 3)).astype(np.float32)
    want = jax.lax.conv_general_dilated(
        x, kernel.reshape(3, 3, 1, 3), (1, 1), "SAME", feature_group_count=3,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    close(jax.jit(ZOO["vision"].depthwise)(x, kernel), want)


def test_patches_are_pieces_of_the_image():
    x = np.arange(2 * 6 * 6 * 3).reshape(2, 6, 6, 3)
    y = np.asarray(ZOO["vision"].patches(x, 2))
    assert y.shape == (2, 9, 12)
    np.testing.assert_array_equal(y[1, 5], x[1, 2:4, 4:6].ravel())


def test_sinkhorn_matches_a_set_with_itself():
    forward, _, _ = ZOO["vision"].sinkhorn(b=1, n=4, d=4)
    x = np.eye(4, dtype=np.float32)[None] * 9
    w = np.eye(4, dtype=np.float32)
    # Equal corners: the plan is a multiple of the kernel, its rows sum to 1 / n.
    left = np.tanh(9) * np.eye(4)
    kernel = np.exp(4 * left @ left / 2)
    plan = kernel / kernel.sum(1, keepdims=True) / 4
    close(jax.jit(forward)(x, x, w)[0], plan @ left - left)


def test_a_training_step_goes_down_the_gradient_of_the_squared_error():
    rng = np.random.default_rng(3)
    x, w, target = rng.standard_normal((5, 3)), rng.standard_normal((3, 2)), np.ones((5, 2))
    loss, new = jax.jit(training_step(lambda x, w: x @ w, inputs=1))(target, x, w)
    error = x @ w - target
    close(loss, (error**2).mean())
    close(new, w - 0.1 * 2 * x.T @ error / 10)


def test_outputs_are_finite():
    chosen = ["gru.b60t6d64u50", "biaffine.b4s60d96r32l5", "capsule.b10n50d12k16",
              "dlrm.b128k26d20f50", "pointnet.b8n130f48", "nerf.b16n96f48"]  # fmt: skip
    shapes = [(60, 64), (4, 60, 60, 5), (10, 16, 12), (128, 1), (8 * 130, 5), (16, 3)]
    for name, shape in zip(chosen, shapes, strict=True):
        function, args = PROGRAMS[name]
        y = np.asarray(jax.jit(function)(*args))
        assert y.shape == shape and np.isfinite(y).all(), name


@pytest.mark.parametrize("name", ["mlp", "mlp.b500d", "Mlp.b5", "mlp.grad", "mlp.b5.d4", "mlp.b0"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="want <family>.<sizes>"):
        parse_name(name)
