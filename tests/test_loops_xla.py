"""The rules of `utils.layout_spread` and `utils.loops` are those of the XLA that is installed."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from utils.layout_rows import describe_slots
from utils.layout_spread import Codes, reached_nodes, tensor_sources
from utils.loops import loop_columns
from utils.program import Program
from utils.schema import OPCODE_ID, UNSET
from utils.xla import jaxprs, search

ROW, COLUMN, FREE = (1, 0), (0, 1), ()
X, W = jnp.ones((24, 40)), jnp.ones((40, 40))


def first_then_second(x, w):
    """Dots 0, 1, 2 and 3; 2 and 3 read the tanh, and the walk from the root meets 2 first."""
    h = jnp.tanh(x @ w) + x @ (w + 1.0)
    return h @ (w + 2.0) - jnp.sin(h @ (w + 3.0))


def second_then_first(x, w):
    h = jnp.tanh(x @ w) + x @ (w + 1.0)
    a, b = h @ (w + 2.0), h @ (w + 3.0)
    return jnp.sin(b) - a


def row(output=FREE, operand=FREE, kernel=FREE) -> np.ndarray:
    columns = np.full(18, UNSET, np.int8)
    for k, order in enumerate((output, operand, kernel)):
        columns[6 * k : 6 * k + len(order)] = order
    return columns


POOL = np.stack([row(), row(COLUMN), row(FREE, COLUMN), row(FREE, ROW)])
SET_OUTPUT, BY_COLUMNS, BY_ROWS = 1, 2, 3
CONFIGS = np.array([
    (0, 0, 0, 0), (SET_OUTPUT, 0, 0, 0), (0, SET_OUTPUT, 0, 0), (0, 0, BY_COLUMNS, 0),
    (0, 0, 0, BY_COLUMNS), (0, 0, BY_COLUMNS, BY_ROWS), (0, 0, BY_ROWS, BY_COLUMNS),
    (SET_OUTPUT, 0, BY_COLUMNS, 0),
])  # fmt: skip


def through_a_reshape(x, w):
    """Dots 0 and 3, and 1, 2: reshapes; what lies between is one loop unless a slot cuts it."""
    h = jnp.abs(jnp.tanh(x @ w).reshape(12, 80)) * 2.0
    return jnp.sqrt(h + 1.0).reshape(24, 40) @ (w + 2.0)


def program_and_graph(function):
    program = jaxprs.trace("toy.program", function, (X, W))
    module = jaxprs.hlo_module(jaxprs.unconstrained(program), program.args)
    equations, nodes = jaxprs.configurable_nodes(program, module)
    graph = search.program_graph(module, nodes, [POOL] * len(nodes))
    order = np.argsort(equations)
    codes = np.empty_like(CONFIGS)
    codes[:, order] = CONFIGS
    codes = np.asfortranarray(codes.astype(np.uint8))
    return program, replace(graph, codes=codes, runtime=np.zeros(len(codes), np.int64))


@pytest.mark.parametrize("function", [first_then_second, second_then_first])
def test_the_compiler_spreads_layouts_so(function):
    program, graph = program_and_graph(function)
    parts = Program(graph, describe_slots(graph))
    tensors = tensor_sources(parts)
    reached = reached_nodes(parts, tensors)
    (tanh,) = np.flatnonzero(graph.opcode == OPCODE_ID["tanh"])
    own = Codes(parts, tensors, reached, graph.codes).node(tanh)[:-1]
    predicted = [reached[tanh].orders[code] for code in own]
    assert {ROW, COLUMN} == set(predicted)
    assert predicted == [compiled_order(program, POOL[config]) for config in CONFIGS]


def compiled_order(program, layouts: np.ndarray) -> tuple[int, ...]:
    """The layout of the tanh in the optimized program, minor to major."""
    text = compiled_text(program, layouts)
    (found,) = set(re.findall(r"f32\[24,40\]\{([\d,]+)\S* tanh\(", text))
    return tuple(map(int, found.split(",")))


def compiled_text(program, layouts: np.ndarray) -> str:
    function = jaxprs.constrained(program, layouts)
    return jax.jit(function).lower(*program.args).compile().as_text()


@pytest.mark.parametrize(
    "function", [first_then_second, second_then_first, through_a_reshape], ids=lambda f: f.__name__
)
def test_the_compiler_runs_these_loops(function):
    program, graph = program_and_graph(function)
    found = loop_columns(graph, describe_slots(graph), 1.0)
    found = np.column_stack([found["loop_count"] * len(graph.config_nodes), found["loop_written"]])
    real = np.array([loops_in(compiled_text(program, POOL[config])) for config in CONFIGS])
    assert len(np.unique(real, axis=0)) >= 3
    np.testing.assert_allclose(found, real - real[0], atol=1e-9)


def loops_in(text: str) -> tuple[int, int]:
    """How many loops an optimized program runs, and how many bytes of f32 they write."""
    entry = text[text.index("ENTRY ") :]
    shapes = re.findall(r"= f32\[([\d,]+)\]\S* fusion\(.*kind=kLoop", entry)
    return len(shapes), sum(4 * int(np.prod([*map(int, shape.split(","))])) for shape in shapes)
