"""What a module of this package defines, imports and uses, read from its source."""

from __future__ import annotations

import __future__
import ast
import dis
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

PACKAGE = "utils"
FLAGS = __future__.annotations.compiler_flag  # hints are text, so they use nothing


class FlattenError(ValueError):
    """These modules can't be put into one namespace. One line."""


@dataclass
class Statement:
    """One statement at the top of a module, with the comment lines above it."""

    module: str
    node: ast.stmt
    names: tuple[str, ...]  # that it defines
    first: int  # line number, from 1
    last: int


@dataclass
class Module:
    """What a module defines and imports."""

    name: str
    doc: str
    lines: list[str]
    statements: list[Statement] = field(default_factory=list)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)  # from this package
    aliases: dict[str, str] = field(default_factory=dict)  # name -> module of this package
    outside: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> (module, name)


def read_module(folder: Path, name: str) -> Module:
    """Parse one module."""
    path = folder / f"{name}.py"
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    module = Module(name, ast.get_docstring(tree) or "", text.splitlines())
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            _note_import(module, node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            _add(module, node, (node.name,))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            _add(module, node, tuple(names))
        elif isinstance(node, ast.Try):  # an import that may fail, and what stands in for it
            inside = [*node.body, *(x for handler in node.handlers for x in handler.body)]
            names = [a.asname or a.name for x in inside for a in getattr(x, "names", ())]
            names += [n.id for x in inside for t in getattr(x, "targets", ()) for n in ast.walk(t)
                      if isinstance(n, ast.Name)]  # fmt: skip
            _add(module, node, tuple(dict.fromkeys(names)))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # the docstring
        elif not isinstance(node, ast.If):  # TYPE_CHECKING and __main__: nothing to carry
            raise FlattenError(f"{path}:{node.lineno}: a statement that defines no name")
    return module


def _add(module: Module, node: ast.stmt, names: tuple[str, ...]) -> None:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(d.lineno for d in decorators)])
    while first > 1 and module.lines[first - 2].startswith("#"):
        first -= 1
    module.statements.append(Statement(module.name, node, names, first, node.end_lineno))


def _note_import(module: Module, node: ast.Import | ast.ImportFrom) -> None:
    source = getattr(node, "module", None)
    for item in node.names:
        name = item.asname or item.name
        if isinstance(node, ast.Import):
            module.outside[name] = (item.name, "")
        elif source == "__future__":
            continue
        elif source.split(".")[0] != PACKAGE:
            module.outside[name] = (source, item.name)
        elif item.asname:
            raise FlattenError(f"{module.name}: 'import {item.name} as {name}' of our own")
        elif source == PACKAGE:
            module.aliases[name] = item.name
        else:
            module.imported[name] = (source.split(".", 1)[1], item.name)


def global_names(code: CodeType, eager: bool = False) -> set[str]:
    """Names that code looks up outside of its functions; `eager`: as soon as it is run."""
    wanted = {"LOAD_NAME"} if eager else {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
    found = {i.argval for i in dis.get_instructions(code) if i.opname in wanted}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= global_names(constant, eager)
    return found


def bound_names(node: ast.AST) -> set[str]:
    """Names of arguments and variables inside a function, a class or a program."""
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
        return set()
    stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)
              and not isinstance(n.ctx, ast.Load)}
    return stored | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def inner_imports(node: ast.AST) -> dict[str, tuple[str, str]]:
    """Imports of this package inside a function."""
    found = {}
    for inner in ast.walk(node):
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").startswith(f"{PACKAGE}."):
            for item in inner.names:
                found[item.name] = (inner.module.split(".", 1)[1], item.name)
    return found
