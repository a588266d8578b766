"""Keeps an eye on a run's evaluations: compares new scores, and notes which checkpoints are left out.

evaluations/step_N/regressions.json     the comparison, once there are scores
evaluations/step_N/left_out.json        why there will be none
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from configs.lineage import Lineage, lineage_of
from configs.regression_schema import RegressionConfig
from configs.regressions import EvaluationLeftOut, RegressionReport
from configs.rundir import RunDir, write_record
from tasks.evaluate.regressions import Judged, judge


def compare_new(run: RunDir, config: RegressionConfig) -> Iterator[RegressionReport]:
    """Write the reports that are missing; yields them, and those whose alert was not told yet.

    In order of steps: what is found of one checkpoint counts for the next. A report that is there
    stays, unless there was nothing to compare with: where the newest goes first, those before it may
    be scored later. Without its file a checkpoint is compared anew.
    """
    lineage = lineage_of(run)
    before: list[Judged] = []
    for evaluation in run.evaluations():
        scores = evaluation.scores()
        if scores is None or _is_void(run, lineage, scores.step):
            continue
        report = evaluation.regressions()
        is_new = False
        if report is None or not report.compared_with:
            now = judge(scores, before, config, time.time())
            if is_new := report is None or bool(now.compared_with):
                write_record(evaluation.regressions_path, now)
                report = now
        before.append(Judged(scores, report))
        if report is not None and (is_new or (report.alert and not report.alert.event)):
            yield report


def _is_void(run: RunDir, lineage: Lineage, step: int) -> bool:
    """Whether the checkpoint was rolled back (one that is gone since counts on)."""
    if not lineage.rollbacks:
        return False
    marker = run.checkpoint(step).marker()
    return marker is not None and lineage.is_void(attempt=marker.attempt, step=step)


def leave_out(run: RunDir, step: int, *, waiting: int) -> EvaluationLeftOut:
    """Note that the checkpoint is not evaluated, because `waiting` wait."""
    record = EvaluationLeftOut(
        step=step,
        checkpoint=run.checkpoint(step).identity() or "",
        waiting=waiting,
        left_out_at=time.time(),
    )
    write_record(run.evaluation(step).left_out_path, record)
    return record


def alert_message(run: RunDir, name: str, event: str, report: RegressionReport) -> dict[str, Any]:
    """What Prefect and webhooks are told; `text` is what chat services show."""
    health = " It is marked as not healthy." if report.unhealthy else ""
    return {
        "event": event,
        "text": f"{name}: the checkpoint of step {report.step} has regressed: {report.said}.{health}",
        "run": name,
        "run_dir": str(run.path),
        "step": report.step,
        "unhealthy": report.unhealthy,
        "compared_with": report.compared_with,
        "regressions": [
            {key: _as_json(value) for key, value in regression.model_dump().items()}
            for regression in report.regressions
        ],
    }


def _as_json(value: Any) -> Any:
    """JSON has no infinite numbers."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
