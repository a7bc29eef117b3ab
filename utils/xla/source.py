"""Tuned layouts as Python source: a file that needs JAX only, to import or to paste."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from utils.dataset import DataError
from utils.files import atomic_path
from utils.xla import relayout
from utils.xla.jaxprs import reason

HEAD = '''\
"""Layouts for {name}: {speedup[0]:.2f} times as fast [{speedup[1]:.2f}, {speedup[2]:.2f}].

    faster = jax.jit(tuned(function))  # takes and returns what function does

They belong to the shapes and the processor that they were measured with. Needs JAX only.
"""
'''
FACTS = '''
NAME = {name!r}
SPEEDUP = {speedup}  # against the compiler's own choice, with its 95% interval
# Number of an operation in the order of evaluation -> its name, the shape of its output, and the
# orders of its output, input and kernel from major to minor (None: the compiler decides).
LAYOUTS = {{
{layouts}
}}
'''
TUNED = '''

def tuned(function):
    """`function` with LAYOUTS attached; ValueError when it is called for another program."""
    return relaid(function, LAYOUTS)
'''


def wrapper_source(
    name: str, layouts: dict[int, tuple], speedup: tuple[float, float, float]
) -> str:
    """The text of a module with ``NAME``, ``SPEEDUP``, ``LAYOUTS`` and ``tuned(function)``.

    layouts: from `jaxprs.orders`; speedup: the estimate and its interval.
    """
    lines = Path(relayout.__file__).read_text(encoding="utf-8").splitlines()
    body = ast.parse("\n".join(lines)).body
    imports = [s for s in body if isinstance(s, (ast.Import, ast.ImportFrom))]
    start, end = imports[0].lineno - 1, imports[-1].end_lineno
    speedup = tuple(round(float(x), 3) for x in speedup)
    listed = "\n".join(f"    {k}: {layout!r}," for k, layout in sorted(layouts.items()))
    facts = FACTS.format(name=name, speedup=speedup, layouts=listed)
    parts = ("\n".join(lines[start:end]), facts, "\n".join(lines[end + 1 :]))
    return HEAD.format(name=name, speedup=speedup) + "\n" + "\n".join(parts) + "\n" + TUNED


def source_path(folder: Path, name: str) -> Path:
    """The module that `write_source` writes for a program."""
    return Path(folder) / f"{name.replace('.', '_')}.py"


def write_source(
    folder: Path, name: str, layouts: dict[int, tuple], speedup: tuple[float, float, float]
) -> Path:
    """Write `wrapper_source` to a module of its own; returns its path."""
    path = source_path(folder, name)
    with atomic_path(path) as temporary:
        temporary.write_text(wrapper_source(name, layouts, speedup), encoding="utf-8")
    return path


def load_source(path: Path) -> ModuleType:
    """Import a file that `write_source` wrote. DataError in one line when it is another."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if not Path(path).is_file() or spec is None:
        raise DataError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DataError(f"{path}: {reason(error)}") from error
    wanted = {"NAME": str, "SPEEDUP": tuple, "LAYOUTS": dict, "tuned": Callable}
    for key, kind in wanted.items():
        if not isinstance(getattr(module, key, None), kind):
            raise DataError(f"{path}: not written by utils.xla.autotune ({key} is not there)")
    return module
