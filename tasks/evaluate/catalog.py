"""Knows which lm-eval tasks and groups exist, by reading their YAML files without importing lm-eval.

The folders are Overland's own `configs/tasks/` and the `evaluate.task_dirs` of the config. A file is
read as lm-eval reads it: `include` merges another file beneath it, `class` or `task` makes a task,
`group` a group of tasks, and `tag` gathers tasks under one more name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import configs
from configs.errors import ConfigError
from tasks.evaluate.task_files import files_below, read_task_file, why_unreadable
from tasks.evaluate.unknown_tasks import unknown_task

OWN_TASKS_DIR = Path(configs.__file__).parent / "tasks"
_OF_A_GROUP = {"group", "group_alias", "task", "aggregate_metric_list", "metadata", "tag"}
"""Keys of a group that change nothing of its members."""
_LONGEST_NAME = 80


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
class Reached:
    """What a list of names needs."""

    entries: list[CatalogEntry] = field(default_factory=list)
    """Each once."""
    overridden: set[str] = field(default_factory=set)
    """Those that a group changes."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each name that cannot be had."""

    def add(self, entry: CatalogEntry, *, overridden: bool) -> None:
        if entry not in self.entries:
            self.entries.append(entry)
        if overridden:
            self.overridden.add(entry.name)

    def add_problem(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


@dataclass
class Catalog:
    """All tasks and groups of some folders."""

    entries: dict[str, list[CatalogEntry]] = field(default_factory=dict)
    """Several entries have one name when their files disagree."""
    tags: dict[str, list[str]] = field(default_factory=dict)
    unreadable: dict[Path, str] = field(default_factory=dict)
    """File -> why it could not be read."""
    of_run: bool = True
    """There is held-out text; else Overland's own tasks are nothing to suggest."""

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

    def reach(self, names: Sequence[str]) -> Reached:
        """What `names` need: tasks, groups and all of their members, each once; and what is wrong."""
        reached = Reached()
        owners: dict[str, str] = {}
        for position, name in enumerate(names):
            part = Reached()
            self._reach(name, None, (), part)
            for entry in part.entries:
                owner = owners.setdefault(entry.name, name)
                if owner != name or names.index(name) != position:
                    reached.problems.append(
                        f"evaluation task {entry.name!r} is asked for twice, by {owner!r} "
                        f"and {name!r} of evaluate.tasks: keep one of the two"
                    )
                else:
                    reached.entries.append(entry)
            reached.problems += part.problems
            reached.overridden |= part.overridden
        return reached

    def _reach(
        self,
        name: str,
        asked_by: CatalogEntry | None,
        above: tuple[str, ...],
        reached: Reached,
        *,
        overridden: bool = False,
    ) -> None:
        if name in above:
            reached.add_problem(f"evaluation group {name!r} contains itself")
            return
        try:
            entry = self.entry(name)
        except ConfigError as error:
            reached.add_problem(str(error))
            return
        if entry is not None:
            reached.add(entry, overridden=overridden)
            changed = overridden or bool(entry.values.keys() - _OF_A_GROUP)
            self._reach_members(
                entry, entry.members, (*above, name), reached, overridden=entry.is_group and changed
            )
        elif name in self.tags:
            for task in self.tags[name]:
                self._reach(task, asked_by, (*above, name), reached, overridden=overridden)
        else:
            reached.add_problem(self._unknown(name, asked_by))

    def _reach_members(
        self,
        group: CatalogEntry,
        members: list[Any],
        above: tuple[str, ...],
        reached: Reached,
        *,
        overridden: bool,
    ) -> None:
        for member in members:
            inline = member if isinstance(member, dict) else {}
            name = inline.get("group") or inline.get("task") if inline else member
            changed = overridden or len(inline) > 1
            if isinstance(name, str) and (not inline or name in self.entries or name in self.tags):
                self._reach(name, group, above, reached, overridden=changed)
            elif inline and isinstance(inline.get("task"), list):
                self._reach_members(group, inline["task"], above, reached, overridden=changed)

    def _unknown(self, name: str, asked_by: CatalogEntry | None) -> str:
        where = f" (a member of group {asked_by.name!r} in {asked_by.path})" if asked_by else ""
        names = {
            name
            for name, entries in self.entries.items()
            if self.of_run or not all(entry.is_own for entry in entries)
        }
        known = sorted({*names, *self.tags})
        return unknown_task(name, where, known, self.unreadable)


def build_catalog(task_dirs: Iterable[Path], *, of_run: bool = True) -> Catalog:
    """Read every YAML file under Overland's own folder and `task_dirs`."""
    catalog = Catalog(of_run=of_run)
    seen: set[Path] = set()
    for folder in (OWN_TASKS_DIR, *task_dirs):
        if not folder.is_dir():
            raise ConfigError(
                f"evaluate.task_dirs (--task-dir): {folder} is not a folder of lm-eval YAML files"
            )
        for path in files_below(folder):
            if path.suffix != ".yaml" or path.resolve() in seen:
                continue
            seen.add(path.resolve())
            _add_file(catalog, path)
    return catalog


def _add_file(catalog: Catalog, path: Path) -> None:
    try:
        values, origins = read_task_file(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        catalog.unreadable[path] = why_unreadable(error, path)
        return
    is_group = "group" in values and "class" not in values
    name = values.get("group" if is_group else "task")
    if isinstance(name, str):  # Else a part that other files include.
        catalog.add(CatalogEntry(name, is_group, path.absolute(), values, origins))


def file_name(number: int, task: str) -> str:
    """Name of a file that stands for the `number`th task; task names may hold any character."""
    return f"{number:03d}_{re.sub(r'[^A-Za-z0-9._-]', '_', task)[:_LONGEST_NAME]}"
