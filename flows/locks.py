"""One live flow a stage of a run directory.

    RUN_DIR/locks/STAGE         locked for as long as a flow holds the stage; names its process
    RUN_DIR/locks/STAGE-next    locked by a flow that waits for it, where one that waits is enough

The kernel frees a lock with its holder. This module needs no Prefect.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from configs.errors import RunDirectoryError
from configs.files import file_lock, is_locked
from configs.rundir import RunDir

_LOOK_INTERVAL_S = 0.5
_held_here: set[tuple[Path, str]] = set()
"""Stages that flows of this process hold, so that their inner flows can tell."""
_waited_since: dict[Path, float] = {}
"""When a flow of this process began to wait for a run directory that it holds now."""


def holds(run: RunDir, stage: str) -> bool:
    """Whether a flow of this process holds the stage."""
    return (run.path, stage) in _held_here


def waited_since(run: RunDir) -> float | None:
    """When this process's flow began to wait for the run directory; None of one that had it at once."""
    return _waited_since.get(run.path)


def is_live(run: RunDir) -> bool:
    """Whether any flow holds a stage of the run directory now."""
    return any(is_locked(path) for path in run.locks_dir.glob("*"))


def is_training(run: RunDir) -> bool:
    """Whether any flow sees to the training of the run directory now."""
    return is_locked(run.locks_dir / "pretrain")


def is_held_elsewhere(run: RunDir, stage: str) -> bool:
    """Whether a flow of another process holds the stage."""
    return not holds(run, stage) and is_locked(run.locks_dir / stage)


def check_free(run: RunDir, *stages: str) -> None:
    """Raise RunDirectoryError when a live flow holds one of the stages. Takes nothing."""
    for stage in stages:
        path = run.locks_dir / stage
        if is_locked(path):
            raise _in_use(run, path)


@contextmanager
def held(
    run: RunDir, stage: str, *, wait: bool = False, say: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold the stage of this run directory against other live flows; `wait` until they have ended, and `say` so."""
    path = run.locks_dir / stage
    asked_at, waits = time.time(), False
    while True:
        with file_lock(path, blocking=False) as got:
            if got:
                me = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
                path.write_text(json.dumps(me) + "\n")
                _held_here.add((run.path, stage))
                if waits:
                    _waited_since.setdefault(run.path, asked_at)
                try:
                    yield
                finally:
                    _held_here.discard((run.path, stage))
                    _waited_since.pop(run.path, None)
                return
        if not wait:
            raise _in_use(run, path)
        if not waits and say is not None:
            say(f"waiting for {run.path}, which a live run uses ({_holder(path)})")
        waits = True
        time.sleep(_LOOK_INTERVAL_S)  # unlike a blocked flock, a signal ends it


@contextmanager
def first_in_line(run: RunDir, stage: str) -> Iterator[bool]:
    """Whether no other flow waits for the stage: held while waiting, given up when the stage is had."""
    with file_lock(run.locks_dir / f"{stage}-next", blocking=False) as got:
        yield got


def _in_use(run: RunDir, path: Path) -> RunDirectoryError:
    return RunDirectoryError(
        f"{run.path} is in use by a live run ({_holder(path)}): "
        "wait for it, stop it, or choose another run_dir=DIR"
    )


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text())
        since = time.strftime("%H:%M:%S", time.localtime(holder["since"]))
        return f"process {holder['pid']} on {holder['host']}, since {since}"
    except (OSError, ValueError, KeyError):
        return "a flow that has only just started"
