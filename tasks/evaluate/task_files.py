"""Reads lm-eval's YAML files as lm-eval does, without importing it or what they name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from configs.errors import EXIT_BAD_INPUT, EvaluationError


class TaskFileError(EvaluationError):
    """Tasks cannot be evaluated as their files are; a line for each mistake. Nothing was changed."""

    exit_code = EXIT_BAD_INPUT


_IGNORED_FOLDERS = frozenset(["__pycache__", ".git", ".ipynb_checkpoints"])


def files_below(folder: Path) -> Iterator[Path]:
    """All files that may be a task's, in an order of their own.

    Not those of evaluations and runs whose folders lie among the tasks: they go on changing.
    """
    for where, folders, names in os.walk(folder):
        is_run = "attempts" in folders and "config.yaml" in names
        if is_run or "evaluation.json" in names:
            folders.clear()
            continue
        folders[:] = sorted(set(folders) - _IGNORED_FOLDERS)
        yield from (Path(where, name) for name in sorted(names))


class FunctionTag(str):
    """The text of a `!function module.name` value; lm-eval resolves it beside its YAML file."""

    __slots__ = ()


# libyaml's parser where it is there: a big collection of tasks has thousands of files.
_Loader = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
yaml.add_constructor(
    "!function", lambda loader, node: FunctionTag(loader.construct_scalar(node)), Loader=_Loader
)


def read_task_file(
    path: Path, above: tuple[Path, ...] = ()
) -> tuple[dict[str, Any], dict[str, Path]]:
    """The file's values with its includes merged, and the folder that each value comes from."""
    path = path.resolve()
    if path in above:
        raise ValueError(f"it includes itself through {above[-1]}")
    with open(path, "rb") as file:
        values = yaml.load(file, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    if not isinstance(values, dict):
        raise ValueError("it is not a YAML mapping")
    includes = values.pop("include", [])
    merged: dict[str, Any] = {}
    origins: dict[str, Path] = {}
    for include in [includes] if isinstance(includes, str) else includes:
        included, folders = read_task_file(path.parent / include, (*above, path))
        included.pop("task_list", None)  # As lm-eval does.
        merged |= included
        origins |= folders
    return merged | values, origins | dict.fromkeys(values, path.parent)


def why_unreadable(error: Exception, path: Path) -> str:
    """What is wrong with a file that :func:`read_task_file` does not read, and in which line of it, or of
    which file that it includes."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    said = [getattr(error, "context", None), getattr(error, "problem", None)]
    words = ", ".join(" ".join(text.split()) for text in said if text)
    where = "" if Path(mark.name) == path.resolve() else f"{mark.name}, "
    return f"{where}line {mark.line + 1}, column {mark.column + 1}: {words}"
