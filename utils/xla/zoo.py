"""What the zoo in ``data/programs`` shares: from a program's name to its function and arrays."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

RATE = 0.1  # of gradient descent


def parse_name(name: str) -> tuple[str, bool, dict[str, int]]:
    """``mlp.grad.b500d64`` -> ("mlp", True, {"b": 500, "d": 64}).

    Raises ValueError when the name has another form.
    """
    match = re.fullmatch(r"([a-z][a-z0-9_]*)(\.grad)?\.((?:[a-z]+[1-9]\d*)+)", name)
    if not match:
        raise ValueError(f"{name}: want <family>.<sizes> or <family>.grad.<sizes>")
    family, grad, sizes = match.groups()
    return family, bool(grad), {k: int(v) for k, v in re.findall(r"([a-z]+)(\d+)", sizes)}


def training_step(forward: Callable, inputs: int) -> Callable:
    """One step of gradient descent on the squared error.

    forward: ``forward(*arrays)`` -> one array; the first ``inputs`` arrays are data, the others
    weights. The step takes ``(target, *arrays)`` and returns ``(loss, *new weights)``.
    """

    def step(target, *arrays):
        data, weights = arrays[:inputs], arrays[inputs:]

        def loss(weights):
            return jnp.mean((forward(*data, *weights) - target) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, *(w - RATE * g for w, g in zip(weights, gradients, strict=True))

    return step


def _input(rng: np.random.Generator, given) -> np.ndarray:
    if isinstance(given, np.ndarray):
        return given
    return rng.standard_normal(given).astype(np.float32)


def _weight(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Scaled by the fan-in, so that activations keep their size; gains and biases are small."""
    scale = 0.1 if len(shape) == 1 else np.prod(shape[:-1]) ** -0.5
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def named_programs(names: Iterable[str], families: Mapping[str, Callable]) -> Iterator[tuple]:
    """Yield ``(name, function, example arguments)`` for each name, the same on every call.

    families: family -> function of the sizes in the name. It returns ``forward``, a list of
    inputs (shapes to fill at random, or the arrays themselves) and a list of weight shapes;
    ``forward(*inputs, *weights)`` gives one array. A ``.grad`` in the name asks for a training
    step. The arrays are float32 unless an input is given; the seed is made of the name.
    """
    for name in names:
        family, grad, sizes = parse_name(name)
        forward, inputs, weights = families[family](**sizes)
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        args = [*(_input(rng, i) for i in inputs), *(_weight(rng, w) for w in weights)]
        if grad:
            target = _input(rng, jax.eval_shape(forward, *args).shape)
            yield name, training_step(forward, len(inputs)), (target, *args)
        else:
            yield name, forward, tuple(args)


def layer_norm(x, gain):
    """Mean zero and variance one along the last axis of x [..., d]; gain [d] is added to one."""
    return rms_norm(x - x.mean(-1, keepdims=True), gain)


def rms_norm(x, gain):
    """Root mean square one along the last axis of x [..., d]; gain [d] is added to one."""
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * (1 + gain)
