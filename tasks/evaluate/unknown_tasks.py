"""The sentence about a task's name that nobody has defined: where it may be, and which names are like it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tasks.evaluate.harness_source import harness_dir, nearest
from tasks.evaluate.offline import network_allowed
from tasks.evaluate.task_files import read_task_file

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
        if path.stem == name or _holds(path, pattern):
            return (
                f"evaluation task {name!r}{where}: {path} cannot be read: {why}: correct the file"
            )
    if (found := _harness_file(name)) is not None:
        return f"evaluation task {name!r}{where} {_of_harness(*found)}"
    hint = nearest(name, known, f"known are {_some(known)}" if known else "no task folder has any")
    broken = [f"{path} cannot be read: {why}" for path, why in unreadable.items()]
    more = f"; and {len(broken) - _FILES_SHOWN} more" if len(broken) > _FILES_SHOWN else ""
    note = f" ({'; '.join(broken[:_FILES_SHOWN])}{more})" if broken else ""
    return f"unknown evaluation task {name!r}{where}: {hint}{note}"


def _harness_file(name: str) -> tuple[Path, Path] | None:
    """lm-eval's own folder of tasks, and its file with the task or group. Found by its text: reading all
    14,000 as YAML takes long."""
    folder = harness_dir()
    pattern = re.compile(
        rf"^(task|group|tag):[ \t]*['\"]?{re.escape(name)}['\"]?[ \t]*$", re.MULTILINE
    )
    for path in sorted((folder / "tasks").rglob("*.yaml")) if folder is not None else ():
        if _holds(path, pattern):
            assert folder is not None
            return folder / "tasks", path
    return None


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


def _holds(path: Path, pattern: re.Pattern[str]) -> bool:
    try:
        return pattern.search(path.read_text(errors="replace")) is not None
    except OSError:
        return False


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
