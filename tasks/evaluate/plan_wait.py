"""Waits for an evaluation's plan, which another process makes."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from configs.rundir import EvaluationDir
from configs.schema import EvaluateConfig
from tasks.evaluate.plan import EvaluationPlan, current_plan

_LOOK_S = 0.05


def await_plan(config: EvaluateConfig, evaluation: EvaluationDir) -> EvaluationPlan:
    """The plan, as soon as inference has made it.

    Whether a plan fits is asked once of each that comes: that looks at every file of the tasks.
    """
    seen: tuple[int, int] | None = None
    while True:
        if (now := _version(evaluation.plan_path)) != seen:
            if (plan := current_plan(config, evaluation)) is not None:
                return plan
            seen = now
        time.sleep(_LOOK_S)


def _version(path: Path) -> tuple[int, int] | None:
    """Of a file that is renamed into place; None while there is none."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_mtime_ns, status.st_ino
    return None
