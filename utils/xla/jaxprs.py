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
from jax.extend.core import ClosedJaxpr

from utils.hlo import instructions, parse_module
from utils.schema import MAX_RANK, UNSET
from utils.xla.relayout import CONFIGURABLE, bind, evaluate, evaluate_relaid

# Primitive -> opcode of the instruction that it becomes.
CONFIGURABLE_PRIMITIVES = dict(zip(CONFIGURABLE, ("dot", "convolution", "reshape")))
PRIMITIVE_OF = {opcode: name for name, opcode in CONFIGURABLE_PRIMITIVES.items()}
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
        return bind(eqn, inputs)

    flat = jax.tree.leaves(tuple(args))
    jax.eval_shape(lambda *a: evaluate(jaxpr, a, visit), *flat)
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
                return bind(eqn, inputs)
            with jax.named_scope(f"{MARK}{next(count)}"):
                return bind(eqn, inputs)

        return evaluate(program.jaxpr, args, visit)

    return run


def constrained(program: Program, layouts: np.ndarray) -> Callable:
    """The inlined program with layouts attached to its configurable equations.

    layouts: int [equations, 18], the schema's columns: minor to major, -1 where unset.
    """
    attached = orders(program, layouts)
    return lambda *args: evaluate_relaid(program.jaxpr, args, attached)


def orders(program: Program, layouts: np.ndarray) -> dict[int, tuple]:
    """Layouts int [equations, 18] as `utils.xla.relayout` takes them; unset equations are left out.
    """
    def order(columns: np.ndarray) -> tuple[int, ...] | None:
        return tuple(int(d) for d in columns[::-1] if d != UNSET) or None

    found = {}
    for k, (operation, row) in enumerate(zip(program.operations, np.asarray(layouts))):
        slots = [order(columns) for columns in row.reshape(3, MAX_RANK)]
        if any(slots):
            found[k] = (PRIMITIVE_OF[operation.opcode], operation.shape, *slots)
    return found


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
