"""Put the needed parts of several modules into one namespace, as source text that a person reads.

Starting from some names, every function, class and constant that they reach is collected, in the
order of the modules, with its comments. Imports between the modules disappear: ``module.name``
becomes ``name``, and where two modules have the same name the later one gets its module's name in
front (``fit`` and ``cost_tables_fit``). What can't be done safely raises `FlattenError`.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from utils.source import (
    FLAGS, PACKAGE, FlattenError, Module, Statement, bound_names, global_names, inner_imports,
    read_module,
)


@dataclass
class Flat:
    """The result: imports, and the source of each module's part in order."""

    imports: str
    parts: dict[str, str]  # module -> source
    docs: dict[str, str]  # module -> its docstring
    names: dict[tuple[str, str], str]  # (module, name) -> name in the one namespace


class Flattener:
    """Collects what some names reach. `order` lists modules; others come where first needed."""

    def __init__(self, folder: Path, order: Iterable[str]) -> None:
        self.folder, self.order, self.modules = folder, list(order), {}
        self.reached: dict[str, set[int]] = {}  # module -> indices of its statements

    def module(self, name: str) -> Module:
        if name not in self.modules:
            self.modules[name] = read_module(self.folder, name)
        return self.modules[name]

    def resolve(self, module: str, name: str) -> tuple[str, str] | None:
        """Where a name of a module is defined; None if outside of this package or nowhere."""
        own = self.module(module)
        if any(name in statement.names for statement in own.statements):
            return module, name
        if name in own.imported:
            found = self.resolve(*own.imported[name])
            if found is None:
                raise FlattenError(f"{module}: nothing named {'.'.join(own.imported[name])}")
            return found
        return None

    def reach(self, module: str, name: str) -> None:
        """Collect a definition and all that it needs."""
        found = self.resolve(module, name)
        if found is None:
            raise FlattenError(f"{module}: no definition of {name}")
        module, name = found
        done = self.reached.setdefault(module, set())
        for i, statement in enumerate(self.module(module).statements):
            if name in statement.names and i not in done:
                done.add(i)
                for target in self.needs(statement):
                    self.reach(*target)

    def needs(self, statement: Statement) -> Iterator[tuple[str, str]]:
        """(module, name) of everything of this package that a statement uses."""
        own = self.module(statement.module)
        tree = ast.Module([statement.node], [])
        names = global_names(compile(tree, own.name, "exec", FLAGS, dont_inherit=True))
        local = inner_imports(statement.node)
        for name in sorted(names | set(local)):
            if name in local or self.resolve(own.name, name):
                yield local.get(name) or (own.name, name)
        for node in ast.walk(statement.node):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in own.aliases:
                    yield own.aliases[node.value.id], node.attr
            elif isinstance(node, ast.Name) and self._is_alias(own.name, node.id):
                yield own.name, node.id

    def _is_alias(self, module: str, name: str) -> bool:
        """A name in a hint that stands for a longer one, such as ``Columns``: for the reader."""
        found = self.resolve(module, name)
        statements = self.module(found[0]).statements if found else []
        nodes = [s.node for s in statements if found[1] in s.names]
        return any(isinstance(getattr(n, "value", None), ast.Subscript) for n in nodes)

    def finish(self, taken: Iterable[str] = (), program: str = "") -> Flat:
        """Order, rename and write down what was reached. Raises FlattenError for any doubt.

        `program` will run in the same namespace; the names that it and others have `taken` are
        not given away.
        """
        taken = {*taken, *bound_names(ast.parse(program))}
        modules = self._in_order()
        names: dict[tuple[str, str], str] = {}
        for module in modules:
            for statement in self._statements(module):
                for name in statement.names:
                    if (module, name) not in names:
                        used = taken | set(names.values())
                        names[module, name] = _free_name(module, name, used)
        parts, outside = {}, {}
        for module in modules:
            pieces, last = [], None
            for statement in self._statements(module):
                gap = 0
                if last:
                    plain = not any(isinstance(s.node, (ast.FunctionDef, ast.ClassDef))
                                    for s in (last, statement))
                    gap = min(statement.first - last.last - 1, 1) if plain else 2
                pieces += [""] * gap + self._text(statement, names)
                last = statement
            parts[module] = "\n".join(pieces)
            used = global_names(compile(parts[module], module, "exec", FLAGS, dont_inherit=True))
            for name, source in self.module(module).outside.items():
                if name in used and outside.setdefault(name, source) != source:
                    raise FlattenError(f"{module}: {name} is imported differently elsewhere")
        for name in set(outside) & set(names.values()):
            raise FlattenError(f"{name} is imported by one module and defined by another")
        _check_order(parts | {"the program": program}, set(outside) | taken)
        docs = {module: self.module(module).doc for module in modules}
        return Flat(_import_lines(outside), parts, docs, names)

    def _statements(self, module: str) -> list[Statement]:
        return [self.module(module).statements[i] for i in sorted(self.reached[module])]

    def _in_order(self) -> list[str]:
        """The listed modules in their order, each other one before the first that needs it."""
        result: list[str] = []

        def put(module: str) -> None:
            if module in result:
                return
            needed = {m for s in self._statements(module) for m, _ in self._resolved_needs(s)}
            for other in sorted(needed - {module, *self.order}):
                put(other)
            result.append(module)

        for module in self.order:
            if module in self.reached:
                put(module)
        return result

    def _resolved_needs(self, statement: Statement) -> list[tuple[str, str]]:
        return [found for found in (self.resolve(*n) for n in self.needs(statement)) if found]

    def _text(self, statement: Statement, names: dict[tuple[str, str], str]) -> list[str]:
        """The lines of a statement with names as they are in the one namespace."""
        own = self.module(statement.module)
        lines = own.lines[statement.first - 1 : statement.last]
        bound = bound_names(statement.node)
        in_strings = {id(n) for s in ast.walk(statement.node) if isinstance(s, ast.JoinedStr)
                      for n in ast.walk(s)}
        local = inner_imports(statement.node)
        edits = []
        for node in ast.walk(statement.node):
            new = None
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in own.aliases:
                    target = self.resolve(own.aliases[node.value.id], node.attr)
                    new, clear = names[target], not bound & {node.value.id, names[target]}
            elif isinstance(node, ast.Name):
                target = self.resolve(*local.get(node.id, (own.name, node.id)))
                if target in names and names[target] != node.id:
                    new = names[target]
                    clear = node.id in statement.names or not bound & {node.id, new}
            if new is None:
                continue
            if not clear or id(node) in in_strings:
                where = f"{own.name}.py:{node.lineno}"
                raise FlattenError(f"{where}: {ast.unparse(node)} can't become {new} here")
            edits.append((node.lineno, node.col_offset, node.end_col_offset, new))
        if isinstance(statement.node, (ast.FunctionDef, ast.ClassDef)):
            name = statement.node.name
            line = lines[statement.node.lineno - statement.first]
            start = line.index(f" {name}") + 1
            edits.append((statement.node.lineno, start, start + len(name), names[own.name, name]))
        for line, start, end, new in sorted(edits, reverse=True):
            raw = lines[line - statement.first].encode()
            lines[line - statement.first] = (raw[:start] + new.encode() + raw[end:]).decode()
        return _without_inner_imports(statement, lines)


def _without_inner_imports(statement: Statement, lines: list[str]) -> list[str]:
    gone: set[int] = set()
    for inner in ast.walk(statement.node):
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").startswith(f"{PACKAGE}."):
            gone |= set(range(inner.lineno, inner.end_lineno + 1))
            if not lines[inner.end_lineno + 1 - statement.first].strip():
                gone.add(inner.end_lineno + 1)
    return [line for i, line in enumerate(lines, statement.first) if i not in gone]


def _free_name(module: str, name: str, taken: set[str]) -> str:
    """`name`, or with the module's name in front where it is taken."""
    if name not in taken:
        return name
    long = f"{module}_{name.lstrip('_')}"
    long = ("_" if name.startswith("_") else "") + (long.upper() if name.isupper() else long)
    if long in taken:
        raise FlattenError(f"{module}: {name} and {long} are both taken")
    return long


def _check_order(parts: dict[str, str], known: set[str]) -> None:
    """Raise unless every name is defined, and before it is needed."""
    known = known | set(dir(builtins)) | {"__name__", "__annotations__"}
    codes = []
    for module, text in parts.items():
        for node in ast.parse(text).body:
            tree = ast.Module([node], [])
            code = compile(tree, module, "exec", FLAGS, dont_inherit=True)
            own = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)
                   and not isinstance(n.ctx, ast.Load)}
            own |= {n.asname or n.name for n in ast.walk(node) if isinstance(n, ast.alias)}
            missing = global_names(code, eager=True) - known - own
            if missing:
                names = ", ".join(sorted(missing))
                raise FlattenError(f"{module}: needs {names} before it is there")
            known |= {node.name} if hasattr(node, "name") else own
            codes.append((module, code, own))
    for module, code, own in codes:
        missing = global_names(code) - known - own
        if missing:
            raise FlattenError(f"{module}: {', '.join(sorted(missing))} is not defined")


def _import_lines(outside: dict[str, tuple[str, str]]) -> str:
    """Import statements, the plain ones first."""
    groups: tuple[list[str], list[str]] = ([], [])  # of the standard library, of others
    listed: dict[str, list[str]] = {}
    for name, (module, item) in sorted(outside.items(), key=lambda entry: entry[1]):
        text = (item or module) + (f" as {name}" if name != (item or module) else "")
        if item:
            listed.setdefault(module, []).append(text)
        else:
            groups[_is_foreign(module)].append(f"import {text}")
    for module, items in listed.items():
        groups[_is_foreign(module)].append(f"from {module} import {', '.join(items)}")
    return "\n\n".join("\n".join(group) for group in groups if group)


def _is_foreign(module: str) -> bool:
    return module.split(".")[0] not in sys.stdlib_module_names
