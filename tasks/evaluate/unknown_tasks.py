"""The sentence about a task's name that nobody has defined: where it may be, and which names are like it."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tasks.evaluate.harness_source import harness_dir, nearest
from tasks.evaluate.offline import network_allowed
from tasks.evaluate.task_files import read_task_file

_NAMED = re.compile(
    r"^['\"]?(?:task|group|tag)['\"]?:[ \t]*['\"]?([^\s'\"]+)['\"]?[ \t]*$", re.MULTILINE
)
_NAMES_SHOWN = 6
_FILES_SHOWN = 3


def unknown_task(
    name: str, where: str, known: Sequence[str], unreadable: Mapping[Path, str]
) -> str:
    """What is said of it. `where`: who asks for it; `unreadable`: file -> why it cannot be read."""
    pattern = re.compile(
        rf"^[ \t-]*(task|group|tag)[ \t]*:[ \t]*['\"]?{re.escape(name)}\b", re.MULTILINE
    )
    for path, why in unreadable.items():
        if path.stem == name or pattern.search(_text(path)):
            return (
                f"evaluation task {name!r}{where}: {path} cannot be read: {why}: correct the file"
            )
    if (found := _harness_file(name)) is not None:
        return f"evaluation task {name!r}{where} {_of_harness(*found)}"
    none = "no task folder is given, or none has a task: give one (--task-dir, evaluate.task_dirs)"
    if hint := nearest(name, known, ""):
        return f"unknown evaluation task {name!r}{where}: {hint}"
    hint = f"known are {_some(known)}" if known else none
    broken = [f"{path} cannot be read: {why}" for path, why in unreadable.items()]
    more = f"; and {len(broken) - _FILES_SHOWN} more" if len(broken) > _FILES_SHOWN else ""
    note = f" ({'; '.join(broken[:_FILES_SHOWN])}{more})" if broken else ""
    return f"unknown evaluation task {name!r}{where}: {hint}{note}"


def _harness_file(name: str) -> tuple[Path, Path] | None:
    """lm-eval's own folder of tasks, and its file with the task or group."""
    folder = harness_dir()
    if folder is None or (path := _harness_files(folder / "tasks").get(name)) is None:
        return None
    return folder / "tasks", path


@functools.cache
def _harness_files(folder: Path) -> dict[str, Path]:
    """Task, group or tag -> its file. Found by their text: reading all 14,000 as YAML takes long."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.yaml")):
        for name in _NAMED.findall(_text(path)):
            found.setdefault(name, path)
    return found


def _of_harness(folder: Path, path: Path) -> str:
    """What to do for one of lm-eval's own tasks, which asks about a data set of the hub."""
    said = f"is one of lm-eval's own ({path})"
    if network_allowed():
        return f"{said}: give {folder} as a task folder to have it"
    try:
        data = read_task_file(path)[0].get("dataset_path")
    except (OSError, ValueError, yaml.YAMLError):
        data = None
    wanted = f"data set {data!r}" if isinstance(data, str) else "data sets"
    return (
        f"{said} and needs {wanted} from the network, and evaluation runs offline: give {folder} as a "
        "task folder and set HF_HUB_OFFLINE=0, or write a task that includes that file and has local "
        "files (dataset_path: json, dataset_kwargs.data_files)"
    )


def _text(path: Path) -> str:
    """The file's text; none when it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
