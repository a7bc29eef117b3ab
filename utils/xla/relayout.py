"""Evaluate a traced program again with layouts attached to its operations.

Only JAX is needed: `utils.xla.source` copies this file, but for these lines, into what it writes.
"""

import functools
import itertools

import jax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

CONFIGURABLE = ("dot_general", "conv_general_dilated", "reshape")
# Calls that only wrap a jaxpr; evaluating the inner equations is the same program.
CALLS = {
    "jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint",
    "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
}  # fmt: skip


def inner(eqn):
    """The jaxpr that a wrapping call holds, closed; None for any other equation."""
    if eqn.primitive.name not in CALLS:
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        found = eqn.params.get(key)
        if isinstance(found, ClosedJaxpr):
            return found
        if isinstance(found, Jaxpr):
            return ClosedJaxpr(found, ())
    return None


def evaluate(closed, args, visit):
    """The outputs of a jaxpr, calls inlined; visit(equation, inputs) evaluates one equation."""
    values = dict(zip(closed.jaxpr.constvars, closed.consts))
    values |= zip(closed.jaxpr.invars, args)

    def read(atom):
        return atom.val if isinstance(atom, Literal) else values[atom]

    for eqn in closed.jaxpr.eqns:
        inputs = [read(v) for v in eqn.invars]
        nested = inner(eqn)
        outputs = visit(eqn, inputs) if nested is None else evaluate(nested, inputs, visit)
        values |= zip(eqn.outvars, outputs)
    return [read(v) for v in closed.jaxpr.outvars]


def bind(eqn, inputs):
    """The outputs of one equation, as it stands."""
    outputs = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


def evaluate_relaid(closed, args, layouts):
    """The outputs of a jaxpr with layouts attached to some of its operations.

    layouts: number of an operation (those of CONFIGURABLE, in the order of evaluation) ->
    (its name, the shape of its output, orders of its output, input and kernel). An order lists
    dimensions from major to minor; None: the compiler decides. Raises ValueError when an
    operation is another one than that.
    """
    def constrain(x, order):
        if order is None:
            return x
        return with_layout_constraint(x, Layout(major_to_minor=order))

    count, left = itertools.count(), dict(layouts)

    def visit(eqn, inputs):
        if eqn.primitive.name not in CONFIGURABLE or (k := next(count)) not in left:
            return bind(eqn, inputs)
        name, shape, output, first, second = left.pop(k)
        found = eqn.primitive.name, tuple(eqn.outvars[0].aval.shape)
        if found != (name, tuple(shape)):
            raise ValueError(f"operation {k} is {found}, not {(name, shape)}: another program")
        inputs = [constrain(x, order) for x, order in zip(inputs, (first, second))] + inputs[2:]
        return [constrain(bind(eqn, inputs)[0], output)]

    outputs = evaluate(closed, args, visit)
    if left:
        raise ValueError(f"there is no operation {min(left)}: another program")
    return outputs


def relaid(function, layouts):
    """`function` with layouts attached (see `evaluate_relaid`), for the same arguments."""
    @functools.wraps(function)
    def run(*args):
        closed, result = jax.make_jaxpr(function, return_shape=True)(*args)
        flat = [jax.numpy.asarray(leaf) for leaf in jax.tree.leaves(args)]
        outputs = evaluate_relaid(closed, flat, layouts)
        return jax.tree.unflatten(jax.tree.structure(result), outputs)

    return run
