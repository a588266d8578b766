"""Writes the YAML files that an evaluation runs, with every local path absolute.

lm-eval takes a relative `data_files` to be relative to the working directory. Here it is relative to
the YAML file that names it, and for Overland's own tasks to the run's `data/evaluation/`. Definitions
inline in a group's member list stay as they are.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from configs.files import write_text
from tasks.evaluate.catalog import CatalogEntry, file_name
from tasks.evaluate.task_files import FunctionTag

# Loaders of the datasets library that read files and need no download.
FILE_LOADERS = {"json", "csv", "text", "parquet", "arrow", "pandas", "xml"}


def heldout_file(entry: CatalogEntry, heldout_dir: Path) -> Path:
    """The data file of one of Overland's own tasks."""
    (name,) = strings(entry.values["dataset_kwargs"]["data_files"])
    return heldout_dir / name


def render(
    entries: Iterable[CatalogEntry], tasks_dir: Path, heldout_dir: Path, cache_dir: Path
) -> None:
    """Write one YAML file a task or group to `tasks_dir`; data sets are cached in `cache_dir`."""
    for number, entry in enumerate(entries):
        changed = _changed_values(entry, heldout_dir, cache_dir)
        # A function is found beside the file that names it, so that file is included, not copied.
        has_function = any(isinstance(value, FunctionTag) for value in leaves(entry.values))
        base = {"include": str(entry.path)} if has_function else entry.values
        text = yaml.safe_dump({**base, **changed}, sort_keys=False)
        write_text(tasks_dir / f"{file_name(number, entry.name)}.yaml", text)


def _changed_values(entry: CatalogEntry, heldout_dir: Path, cache_dir: Path) -> dict[str, Any]:
    path = entry.values.get("dataset_path")
    if path in FILE_LOADERS:
        kwargs = local_kwargs(entry, heldout_dir)
        return {"dataset_kwargs": {"cache_dir": str(cache_dir), **kwargs}}
    folder = local_folder(entry)
    return {"dataset_path": str(folder)} if folder else {}


def local_kwargs(entry: CatalogEntry, heldout_dir: Path | None) -> dict[str, Any]:
    """The task's `dataset_kwargs` with absolute file names; own tasks' only where they are known."""
    kwargs = entry.values.get("dataset_kwargs")
    if entry.values.get("dataset_path") not in FILE_LOADERS or not isinstance(kwargs, dict):
        return {}
    folder = heldout_dir if entry.is_own else entry.origins["dataset_kwargs"]
    if folder is None:
        return {}
    changed = {}
    if kwargs.get("data_dir"):
        changed["data_dir"] = _absolute(kwargs["data_dir"], str(folder))
    if kwargs.get("data_files"):  # Patterns: brackets in the folder's own name are not.
        changed["data_files"] = _absolute(kwargs["data_files"], glob.escape(str(folder)))
    return kwargs | changed


def _absolute(value: Any, folder: str) -> Any:
    if isinstance(value, dict):
        return {key: _absolute(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [_absolute(inner, folder) for inner in value]
    if not isinstance(value, str) or "://" in value:
        return value
    return str(Path(folder) / Path(value).expanduser())


def local_folder(entry: CatalogEntry) -> Path | None:
    """The folder on this machine that `dataset_path` names, if it does."""
    path = entry.values.get("dataset_path")
    if not isinstance(path, str):
        return None
    folder = entry.origins["dataset_path"] / Path(path).expanduser()
    return folder if folder.exists() else None


def strings(value: Any) -> Iterator[str]:
    """All strings in it."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, str))


def leaves(value: Any) -> Iterator[Any]:
    """What is in dictionaries and lists, however deep."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)
    else:
        yield value
