"""Knows which lm-eval tasks and groups exist, by reading their YAML files without importing lm-eval.

The folders are Overland's own `configs/tasks/` and the `evaluate.task_dirs` of the config. A file is
read as lm-eval reads it: `include` merges another file beneath it, `class` or `task` makes a task,
`group` a group of tasks, and `tag` gathers tasks under one more name.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import configs
from configs.errors import ConfigError

OWN_TASKS_DIR = Path(configs.__file__).parent / "tasks"
_IGNORED_FOLDERS = {"__pycache__", ".ipynb_checkpoints"}
_NAMES_SHOWN = 3
_LONGEST_NAME = 80


class FunctionTag(str):
    """The text of a `!function module.name` value; lm-eval resolves it beside its YAML file."""

    __slots__ = ()


# libyaml's parser where it is there: a big collection of tasks has thousands of files.
_Loader = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
yaml.add_constructor(
    "!function", lambda loader, node: FunctionTag(loader.construct_scalar(node)), Loader=_Loader
)


@dataclass(frozen=True)
class CatalogEntry:
    """One task or group."""

    name: str
    is_group: bool
    path: Path
    values: dict[str, Any]
    """The file's content, includes merged."""
    origins: dict[str, Path]
    """Folder of the file that each top-level value comes from."""

    @property
    def is_own(self) -> bool:
        """Whether the task is one of Overland's own."""
        return self.path.parent == OWN_TASKS_DIR

    @property
    def members(self) -> list[Any]:
        """A group's list of names and inline definitions."""
        members = self.values.get("task") if self.is_group else None
        return members if isinstance(members, list) else []

    @property
    def tags(self) -> list[str]:
        """Tags of the task."""
        tags = self.values.get("tag") or []
        return [tags] if isinstance(tags, str) else list(tags)


@dataclass
class Catalog:
    """All tasks and groups of some folders."""

    entries: dict[str, list[CatalogEntry]] = field(default_factory=dict)
    """Several entries have one name when their files disagree."""
    tags: dict[str, list[str]] = field(default_factory=dict)
    unreadable: dict[Path, str] = field(default_factory=dict)
    """File -> why it could not be read."""

    def add(self, entry: CatalogEntry) -> None:
        self.entries.setdefault(entry.name, []).append(entry)
        for tag in entry.tags if not entry.is_group else []:
            self.tags.setdefault(tag, []).append(entry.name)

    def entry(self, name: str) -> CatalogEntry | None:
        """The task or group with this name; ConfigError when there is more than one."""
        found = self.entries.get(name, [])
        if len(found) > 1:
            places = " and ".join(str(entry.path) for entry in found[:2])
            raise ConfigError(
                f"evaluation task {name!r} is defined in {places}: rename one of them"
            )
        return found[0] if found else None

    def select(self, names: Sequence[str]) -> list[CatalogEntry]:
        """The entries that `names` need: tasks, groups and all of their members, each once.

        ConfigError for a name that does not exist, and for a task that is asked for twice.
        """
        selected: dict[str, CatalogEntry] = {}
        owners: dict[str, int] = {}
        for position, name in enumerate(names):
            for entry in self._reach(name, asked_by=None, above=()):
                owner = owners.setdefault(entry.name, position)
                if owner != position:
                    raise ConfigError(
                        f"evaluation task {entry.name!r} is asked for twice, by {names[owner]!r} "
                        f"and {name!r} of evaluate.tasks: keep one of the two"
                    )
                selected[entry.name] = entry
        return list(selected.values())

    def _reach(
        self, name: str, asked_by: CatalogEntry | None, above: tuple[str, ...]
    ) -> Iterator[CatalogEntry]:
        if name in above:
            raise ConfigError(f"evaluation group {name!r} contains itself")
        entry = self.entry(name)
        if entry is not None:
            yield entry
            yield from self._reach_members(entry, entry.members, (*above, name))
        elif name in self.tags:
            for task in self.tags[name]:
                yield from self._reach(task, asked_by, (*above, name))
        else:
            raise ConfigError(self._unknown(name, asked_by))

    def _reach_members(
        self, group: CatalogEntry, members: list[Any], above: tuple[str, ...]
    ) -> Iterator[CatalogEntry]:
        for member in members:
            inline = member if isinstance(member, dict) else {}
            name = inline.get("group") or inline.get("task") if inline else member
            if isinstance(name, str) and (not inline or name in self.entries or name in self.tags):
                yield from self._reach(name, group, above)
            elif inline and isinstance(inline.get("task"), list):
                yield from self._reach_members(group, inline["task"], above)

    def _unknown(self, name: str, asked_by: CatalogEntry | None) -> str:
        """The sentence about an unknown name, with the nearest known ones."""
        known = sorted({*self.entries, *self.tags})
        where = f" (a member of group {asked_by.name!r} in {asked_by.path})" if asked_by else ""
        nearest = difflib.get_close_matches(name, known, n=_NAMES_SHOWN, cutoff=0.5)
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"known are {_some(known)}"
        broken = next(iter(self.unreadable.items()), None)
        note = f" ({broken[0]} cannot be read: {broken[1]})" if broken else ""
        note += self._where_harness_has_its_own()
        return f"unknown evaluation task {name!r}{where}: {hint}{note}"

    def _where_harness_has_its_own(self) -> str:
        spec = importlib.util.find_spec("lm_eval")
        if spec is None or spec.origin is None:
            return ""
        folder = Path(spec.origin).parent / "tasks"
        known = [entry for entries in self.entries.values() for entry in entries]
        if any(entry.path.is_relative_to(folder) for entry in known):
            return ""
        return f" (lm-eval's own tasks are in {folder}: give that as a task folder to have them)"


def build_catalog(task_dirs: Iterable[Path]) -> Catalog:
    """Read every YAML file under Overland's own folder and `task_dirs`."""
    catalog = Catalog()
    seen: set[Path] = set()
    for folder in (OWN_TASKS_DIR, *task_dirs):
        if not folder.is_dir():
            raise ConfigError(f"evaluate.task_dirs: {folder} is not a folder of lm-eval YAML files")
        for path in sorted(folder.glob("**/*.yaml")):
            if path.resolve() in seen or _IGNORED_FOLDERS.intersection(path.parts):
                continue
            seen.add(path.resolve())
            _add_file(catalog, path)
    return catalog


def _add_file(catalog: Catalog, path: Path) -> None:
    try:
        values, origins = read_task_file(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        catalog.unreadable[path] = " ".join(str(error).split())
        return
    is_group = "group" in values and "class" not in values
    name = values.get("group" if is_group else "task")
    if isinstance(name, str):  # Else a part that other files include.
        catalog.add(CatalogEntry(name, is_group, path.absolute(), values, origins))


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


def file_name(number: int, task: str) -> str:
    """Name of a file that stands for the `number`th task; task names may hold any character."""
    return f"{number:03d}_{re.sub(r'[^A-Za-z0-9._-]', '_', task)[:_LONGEST_NAME]}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 2 * _NAMES_SHOWN} more" if len(names) > 2 * _NAMES_SHOWN else ""
    return ", ".join(names[: 2 * _NAMES_SHOWN]) + more
