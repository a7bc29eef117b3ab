"""Makes the HLO modules beside this file from tiny JAX programs.

Run from the repository root, with requirements-xla.txt installed:

    python tests/data/hlo/make.py

The modules were made with JAX 0.10.2. Source locations are left out, so that a module does not
depend on the place of this file.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax


def dot(x, w):
    """A dot under a mark, then a product that uses its operand twice."""
    with jax.named_scope("configurable_7"):
        y = lax.dot(x, w)
    return y * y


def convolution(image, kernel):
    """Two feature groups and a window without symmetry, so that every column differs."""
    return lax.conv_general_dilated(
        image,
        kernel,
        window_strides=(2, 1),
        padding=((1, 2), (3, -1)),
        lhs_dilation=(1, 2),
        rhs_dilation=(3, 1),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=2,
    )


def slices(x, i):
    """A strided slice, a dynamic slice and a pad of a tensor of rank 3."""
    part = lax.slice(x, (1, 2, 3), (5, 8, 10), (2, 3, 1))  # [2, 2, 7]
    moving = lax.dynamic_slice(x, (i, i, i), (2, 2, 7))
    return lax.pad(part + moving, 0.0, ((1, -1, 0), (2, 3, 1), (0, 4, 0)))


def reduction(x):
    """A transpose, then a sum over one dimension, which calls a computation."""
    return lax.reduce(x.T, jnp.bfloat16(0), lax.add, (0,))


def sorting(keys, values):
    """A stable sort of two arrays, so a tuple, by the second dimension of three."""
    return lax.sort((keys, values), dimension=1, is_stable=True, num_keys=1)


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


PROGRAMS = {
    dot: (array(4, 5), array(5, 6)),
    convolution: (array(8, 16, 12, 6), array(3, 4, 3, 10)),
    slices: (array(6, 9, 11), array(dtype=jnp.uint32)),
    reduction: (array(7, 3, dtype=jnp.bfloat16),),
    sorting: (array(2, 5, 3), array(2, 5, 3, dtype=jnp.int32)),
}

if __name__ == "__main__":
    jax.config.update("jax_traceback_in_locations_limit", 0)
    for function, arguments in PROGRAMS.items():
        module = jax.jit(function).lower(*arguments).compiler_ir("hlo")
        path = Path(__file__).with_name(f"{function.__name__}.hlo.pb")
        path.write_bytes(module.as_serialized_hlo_module_proto())
