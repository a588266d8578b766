"""Looks for a task's `!function`s without running them: lm-eval imports them, which runs their module."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from tasks.evaluate.catalog import CatalogEntry
from tasks.evaluate.harness_source import nearest
from tasks.evaluate.render import leaves
from tasks.evaluate.task_files import FunctionTag

_MADE_AT_RUN_TIME = re.compile(r"\b(globals|locals|vars|setattr|exec)\(")
"""Ways in which a module may have names that it does not write down."""


def function_problems(entry: CatalogEntry) -> Iterator[str]:
    """Functions that cannot be there, and modules that cannot be imported."""
    seen: set[str] = set()
    for key, value in entry.values.items():
        for leaf in leaves(value):
            if isinstance(leaf, FunctionTag):
                problem = _problem(str(leaf), entry.origins[key])
                if problem is not None and problem not in seen:
                    seen.add(problem)
                    yield f"{key}: {problem}"


def registers(entry: CatalogEntry, kind: str) -> bool:
    """Whether a module of its functions gives lm-eval further metrics, aggregations or filters."""
    for key, value in entry.values.items():
        for leaf in leaves(value):
            if isinstance(leaf, FunctionTag):
                path = _module_path(str(leaf).rpartition(".")[0], entry.origins[key])
                if path.is_file() and f"register_{kind}" in path.read_text(errors="replace"):
                    return True
    return False


def _module_path(module: str, folder: Path) -> Path:
    return folder / f"{module.replace('.', '/')}.py"


def _problem(function: str, folder: Path) -> str | None:
    module, _, name = function.rpartition(".")
    if not module:
        return f"!function {function} names no module: write module.{function}, for module.py in {folder}"
    path = _module_path(module, folder)
    if path.is_file():
        status = path.stat()
        return _problem_of(path, name, status.st_size, status.st_mtime_ns)
    if _is_installed(module):
        return None
    return f"!function {function} cannot be imported: there is no {path}, and no package {module}"


@functools.lru_cache(maxsize=1024)
def _problem_of(path: Path, name: str, *_version: int) -> str | None:
    try:
        text = path.read_text()
        module = ast.parse(text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        return f"{path} cannot be read: {error}"
    except SyntaxError as error:
        return f"{path}, line {error.lineno}, is no Python: {error.msg}"
    if "sys.path" not in text and (missing := _missing_import(module)) is not None:
        return f"{path}, line {missing[0]}, imports {missing[1]}, which is not installed"
    names = set(_names(module.body))
    if name in names or {"*", "__getattr__"} & names or _MADE_AT_RUN_TIME.search(text):
        return None
    hint = nearest(name, names, "no name there is like it")
    return f"!function {path.stem}.{name}: {path} has no {name}; {hint}"


def _missing_import(module: ast.Module) -> tuple[int, str] | None:
    """Line and package of the first import that cannot work; one inside `try` may be meant to fail."""
    for node in module.body:
        packages: list[str] = []
        if isinstance(node, ast.Import):
            packages = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            packages = [node.module]
        for package in packages:
            if not _is_installed(package):
                return node.lineno, package.partition(".")[0]
    return None


def _is_installed(module: str) -> bool:
    """Whether its package is; the package is not imported for it."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except ValueError:
        return True  # a module that was not imported in the usual way


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """What the statements of a module define, also below `if`, `try` and `with`."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((a.asname or a.name).partition(".")[0] for a in node.names)
        else:
            yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and _is_set(n))
            for field in ("body", "orelse", "finalbody"):
                yield from _names(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from _names(handler.body)


def _is_set(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)
