"""Waits for an evaluation's plan, which another process makes."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from configs.errors import EvaluationError
from configs.rundir import EvaluationDir, read_record
from configs.schema import EvaluateConfig
from tasks.evaluate.plan import EvaluationPlan, current_plan
from tasks.evaluate.responses import Inferred

_LOOK_S = 0.05


def await_plan(config: EvaluateConfig, evaluation: EvaluationDir) -> EvaluationPlan:
    """The plan, as soon as inference has made it.

    Whether a plan fits is asked once of each that comes: that looks at every file of the tasks.
    EvaluationError when inference ends with one that does not.
    """
    seen: tuple[int, int] | None = None
    began_at = time.time()
    while True:
        inferred = read_record(evaluation.inferred_path, Inferred)
        if (now := _version(evaluation.plan_path)) != seen:
            if (plan := current_plan(config, evaluation)) is not None:
                return plan
            seen = now
        elif inferred is not None and inferred.ended_at > began_at:
            raise EvaluationError(
                "the model or the files of the tasks were changed after inference had planned for them: "
                "evaluate again"
            )
        time.sleep(_LOOK_S)


def _version(path: Path) -> tuple[int, int] | None:
    """Of a file that is renamed into place; None while there is none."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_mtime_ns, status.st_ino
    return None
