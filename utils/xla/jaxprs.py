"""Trace a JAX program and evaluate it again with layouts attached to its operations.

The unit of configuration is an equation of the traced program (dot_general,
conv_general_dilated or reshape) in the order of evaluation. Nested calls are inlined on the
way, so an equation of a function that is called twice counts twice; bodies of loops and
branches are evaluated as they are and hold nothing configurable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from utils.hlo import instructions, parse_module
from utils.schema import MAX_RANK, UNSET

# Primitive -> opcode of the instruction that it becomes.
CONFIGURABLE_PRIMITIVES = {
    "dot_general": "dot",
    "conv_general_dilated": "convolution",
    "reshape": "reshape",
}
# Calls that only wrap a jaxpr; evaluating the inner equations is the same program.
CALLS = {
    "jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint",
    "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
}  # fmt: skip
LOOPS = {"while", "scan", "cond"}
MARK = "configurable_"


class ProgramError(ValueError):
    """A program that cannot be collected; the message is one line that names it."""


class Operation(NamedTuple):
    """A configurable equation. Ranks of output, input and kernel; 0 where there is no choice."""

    opcode: str
    shape: tuple[int, ...]
    ranks: tuple[int, int, int]


@dataclass(frozen=True)
class Program:
    """A traced program and its configurable equations in the order of evaluation."""

    name: str
    jaxpr: ClosedJaxpr
    args: tuple  # flat, on the device
    operations: tuple[Operation, ...]
    loops: int  # loops and branches whose bodies were left alone


def _inner(eqn) -> ClosedJaxpr | None:
    """The jaxpr that a wrapping call holds, closed; None for any other equation."""
    if eqn.primitive.name not in CALLS:
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(key)
        if isinstance(inner, ClosedJaxpr):
            return inner
        if isinstance(inner, Jaxpr):
            return ClosedJaxpr(inner, ())
    return None


def _evaluate(closed: ClosedJaxpr, args: Sequence, visit: Callable) -> list:
    values = dict(zip(closed.jaxpr.constvars, closed.consts))
    values |= zip(closed.jaxpr.invars, args)

    def read(atom):
        return atom.val if isinstance(atom, Literal) else values[atom]

    for eqn in closed.jaxpr.eqns:
        inputs = [read(v) for v in eqn.invars]
        inner = _inner(eqn)
        if inner is not None:
            outputs = _evaluate(inner, inputs, visit)
        else:
            outputs = visit(eqn, inputs)
        values |= zip(eqn.outvars, outputs)
    return [read(v) for v in closed.jaxpr.outvars]


def _bind(eqn, inputs: Sequence) -> list:
    outputs = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


def _operation(eqn) -> Operation:
    output, first = eqn.outvars[0].aval, eqn.invars[0].aval
    kernel = 0 if eqn.primitive.name == "reshape" else eqn.invars[1].aval.ndim
    ranks = tuple(r if 2 <= r <= MAX_RANK else 0 for r in (output.ndim, first.ndim, kernel))
    return Operation(CONFIGURABLE_PRIMITIVES[eqn.primitive.name], tuple(output.shape), ranks)


def reason(error: Exception) -> str:
    """An exception in one line: its type, and the first line of what it says."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def check_result(name: str, function: Callable, args: Sequence) -> ClosedJaxpr:
    """The traced program; ProgramError when it raises or returns no array."""
    try:
        jaxpr = jax.make_jaxpr(function)(*args)
    except Exception as error:
        raise ProgramError(f"{name}: raised while traced: {reason(error)}") from error
    if not jaxpr.out_avals:
        raise ProgramError(f"{name}: returns no array")
    return jaxpr


def trace(name: str, function: Callable, args: Sequence) -> Program:
    """Trace ``function(*args)`` and list its configurable equations.

    Raises ProgramError when the program raises, returns no array or has nothing to configure.
    """
    jaxpr = check_result(name, function, args)
    operations, loops = [], 0

    def visit(eqn, inputs):
        nonlocal loops
        loops += eqn.primitive.name in LOOPS
        if eqn.primitive.name in CONFIGURABLE_PRIMITIVES:
            operations.append(_operation(eqn))
        return _bind(eqn, inputs)

    flat = jax.tree.leaves(tuple(args))
    jax.eval_shape(lambda *a: _evaluate(jaxpr, a, visit), *flat)
    if not any(any(o.ranks) for o in operations):
        raise ProgramError(f"{name}: nothing to configure (no dot, convolution or reshape)")
    device = tuple(jax.device_put(a) for a in flat)
    return Program(name, jaxpr, device, tuple(operations), loops)


def unconstrained(program: Program) -> Callable:
    """The inlined program whose k-th configurable equation is marked ``configurable_k``."""
    def run(*args):
        count = iter(range(len(program.operations)))

        def visit(eqn, inputs):
            if eqn.primitive.name not in CONFIGURABLE_PRIMITIVES:
                return _bind(eqn, inputs)
            with jax.named_scope(f"{MARK}{next(count)}"):
                return _bind(eqn, inputs)

        return _evaluate(program.jaxpr, args, visit)

    return run


def constrained(program: Program, layouts: np.ndarray) -> Callable:
    """The inlined program with layouts attached to its configurable equations.

    layouts: int [equations, 18], the schema's columns: minor to major, -1 where unset.
    """
    def constrain(x, columns):
        order = [int(d) for d in columns if d != UNSET]
        if not order:
            return x
        return with_layout_constraint(x, Layout(major_to_minor=tuple(order[::-1])))

    def run(*args):
        rows = iter(layouts)

        def visit(eqn, inputs):
            if eqn.primitive.name not in CONFIGURABLE_PRIMITIVES:
                return _bind(eqn, inputs)
            output, first, second = np.asarray(next(rows)).reshape(3, MAX_RANK)
            inputs = [constrain(x, c) for x, c in zip(inputs, (first, second))] + inputs[2:]
            return [constrain(_bind(eqn, inputs)[0], output)]

        return _evaluate(program.jaxpr, args, visit)

    return run


def hlo_module(function: Callable, args: Sequence):
    """The program's HloModuleProto before optimization."""
    lowered = jax.jit(function).lower(*args)
    return parse_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


def configurable_nodes(program: Program, module) -> tuple[np.ndarray, np.ndarray]:
    """Which node of the module each configurable equation became.

    Returns (equation int64 [nc], node int64 [nc]), ordered by node. An equation whose mark is
    on no instruction of its opcode, or on several, is left out, as is one without a choice.
    """
    found: dict[int, list[int]] = {}
    for node, (_, instruction) in enumerate(instructions(module)):
        for part in instruction.metadata.op_name.split("/"):
            if part.startswith(MARK):
                k = int(part.removeprefix(MARK))
                want = program.operations[k]
                shape = tuple(instruction.shape.dimensions)
                if (instruction.opcode, shape) == (want.opcode, want.shape):
                    found.setdefault(k, []).append(node)
    pairs = sorted((nodes[0], k) for k, nodes in found.items() if len(nodes) == 1)
    pairs = [(node, k) for node, k in pairs if any(program.operations[k].ranks)]
    if not pairs:
        raise ProgramError(f"{program.name}: nothing to configure (no operation kept its mark)")
    nodes, equations = np.array(pairs, dtype=np.int64).T
    return equations, nodes
