"""Numbered notebooks as files: which there are, their parameters, and whether they can be run."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from pathlib import Path

import nbformat

KERNEL = "python3"


class NotebookError(ValueError):
    """A notebook, or what was asked of it, is wrong. One line."""


@dataclass(frozen=True)
class Notebook:
    path: Path
    defaults: dict[str, object]  # parameter -> default value

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def number(self) -> str:
        return self.name[:2]


def list_notebooks(folder: Path) -> list[Notebook]:
    """All notebooks named NN_*.ipynb in order. Raises NotebookError if one cannot be run."""
    paths = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not paths:
        raise NotebookError(f"{folder}: no notebooks named NN_*.ipynb")
    return [read_notebook(path) for path in paths]


def read_notebook(path: Path) -> Notebook:
    """Read and check one notebook.

    Papermill itself would run a notebook without a `parameters` cell with its defaults, and stop
    late without a kernel's name; so both are checked here.
    """
    try:
        content = nbformat.read(path, as_version=4)
    except Exception as error:  # whatever nbformat, json or the system raise
        raise NotebookError(f"{path}: not a notebook ({str(error).splitlines()[0]})") from error
    kernel = content.metadata.get("kernelspec", {}).get("name")
    if kernel != KERNEL:
        raise NotebookError(f"{path}: its kernel is {kernel!r} and must be '{KERNEL}'")
    cells = [c for c in content.cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1 or cells[0].cell_type != "code":
        raise NotebookError(f"{path}: needs one code cell tagged 'parameters', has {len(cells)}")
    return Notebook(path, parameter_defaults(cells[0].source, path))


def parameter_defaults(source: str, path: Path) -> dict[str, object]:
    """Name -> value of the assignments in a parameters cell, which must be plain literals."""
    defaults: dict[str, object] = {}
    try:
        for statement in ast.parse(source).body:
            targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
            if not isinstance(targets[0], ast.Name):
                raise ValueError("something else than assignments")
            defaults[targets[0].id] = ast.literal_eval(statement.value)
    except (SyntaxError, ValueError, AttributeError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise NotebookError(f"{path}: its parameters cell must be plain values ({why})") from error
    return defaults


def chosen_values(
    chosen: list[Notebook], notebooks: list[Notebook], given: list[tuple[str, str]]
) -> dict[str, dict[str, object]]:
    """Notebook name -> the `given` (name, text) parameters that it has, with its types.

    Raises NotebookError for a name that no notebook in `chosen` has.
    """
    known = {name for notebook in chosen for name in notebook.defaults}
    for name, _ in given:
        if name in known:
            continue
        others = [notebook.name for notebook in notebooks if name in notebook.defaults]
        if others:
            raise NotebookError(f"-p {name}: only {', '.join(others)} has it, which is not run")
        near = difflib.get_close_matches(name.upper(), sorted(known), 3, 0.5) or sorted(known)
        raise NotebookError(f"-p {name}: no notebook has it; nearest: {', '.join(near)}")
    return {
        notebook.name: {
            name: convert(name, text, notebook.defaults[name])
            for name, text in given
            if name in notebook.defaults
        }
        for notebook in chosen
    }


def convert(name: str, text: str, default: object) -> object:
    """`text` as a value of the default's type."""
    try:
        if isinstance(default, bool):
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if isinstance(default, (int, float)):
            return type(default)(text)
        return text if isinstance(default, str) else ast.literal_eval(text)
    except (KeyError, ValueError, SyntaxError) as error:
        kind = {bool: "true or false", int: "a whole number", float: "a number"}
        wanted = kind.get(type(default), "a Python value")
        raise NotebookError(f"-p {name} {text}: must be {wanted}, such as {default}") from error
