"""Which nodes have failed, and when: a node that fails again and again passes every single test.

An event file (JSON lines) a run, in the run directory or in a folder that all runs of a site share. One
attempt counts once against a node, however often a flow that was killed writes it down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from configs.errors import RunFailedError
from configs.files import append_json_line, read_json_lines, sha256_of_json
from configs.nodecheck import NodeFailure
from configs.nodecheck_schema import NodeCheckConfig
from configs.records import Action
from configs.rundir import RunDir

_DAY_S = 86_400.0
_FILE_NAME = "node_history.jsonl"


def remember(run: RunDir, config: NodeCheckConfig, failures: Iterable[NodeFailure]) -> None:
    """Put failures of nodes on record, each once."""
    path = _path(run, config)
    known = {_identity(event) for event in _read(path)}
    try:
        for event in failures:
            if _identity(event) not in known:
                path.parent.mkdir(parents=True, exist_ok=True)
                append_json_line(path, event.model_dump(mode="json"))
    except OSError as error:
        raise RunFailedError(
            f"failures of nodes cannot be recorded in {path}: {error.strerror}; set "
            "recovery.node_check.history to a folder that can be written"
        ) from error


def lemons(run: RunDir, config: NodeCheckConfig, *, now: float) -> list[str]:
    """Nodes that have failed too often within the window, the worst first."""
    paths = [_path(run, config)]
    if config.history is not None:
        paths = sorted(config.history.glob(f"*-{_FILE_NAME}"))
    events = [event for path in paths for event in _read(path)]
    return count_lemons(events, config, now=now)


def count_lemons(
    events: Sequence[NodeFailure], config: NodeCheckConfig, *, now: float
) -> list[str]:
    """The same, of events."""
    oldest = now - config.lemon_window_days * _DAY_S
    attempts: dict[str, set[tuple[str, int]]] = {}
    for event in events:
        if event.time >= oldest:
            attempts.setdefault(event.node, set()).add((event.run, event.attempt))
    found = {node: len(a) for node, a in attempts.items() if len(a) >= config.lemon_failures}
    return sorted(found, key=lambda node: (-found[node], node))


def still_excluded(
    actions: Iterable[Action | None], config: NodeCheckConfig, *, now: float
) -> set[str]:
    """Nodes that actions of a run have excluded within the window: who serves again after that was
    repaired, or fails again and is excluded again."""
    oldest = now - config.lemon_window_days * _DAY_S
    recent = [action for action in actions if action and action.decided_at >= oldest]
    return {node for action in recent for node in action.exclude_nodes}


def _path(run: RunDir, config: NodeCheckConfig) -> Path:
    if config.history is None:
        return run.path / _FILE_NAME
    # A run directory has one writer, so this file has.
    return config.history / f"{run.path.name}-{sha256_of_json(str(run.path))[:8]}-{_FILE_NAME}"


def _read(path: Path) -> list[NodeFailure]:
    found = []
    for value, _ in read_json_lines(path):
        with suppress(ValidationError):
            found.append(NodeFailure.model_validate(value))
    return found


def _identity(event: NodeFailure) -> tuple[str, int, str]:
    return event.run, event.attempt, event.node
