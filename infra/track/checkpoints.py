"""A checkpoint as a LoggedModel, and its evaluation as an MLflow run whose scores are the model's."""

from __future__ import annotations

from configs.records import EvaluationFailure, EvaluationScores
from configs.regressions import RegressionReport
from configs.rundir import CheckpointDir, EvaluationDir, step_folder_name
from infra.track import spans
from infra.track.cursor import (
    CheckpointCursor,
    EvaluationCursor,
    checkpoint_signature,
    evaluation_signature,
)
from infra.track.points import UNSCORED, Point, clean, score_points
from infra.track.telling import Telling

_FAILURE_TAGS = ("overland.failed_stage", "overland.reason")


def tell_checkpoint(telling: Telling, checkpoint: CheckpointDir) -> None:
    """Tell about the checkpoint once it is committed, and again if another attempt replaced it."""
    now = checkpoint_signature(checkpoint)
    told = telling.cursor.checkpoints.get(checkpoint.step)
    if now in ("", told.files if told else ""):
        return
    marker = checkpoint.marker()
    if marker is None:
        return
    attempt = telling.cursor.attempts.get(marker.attempt)
    name = step_folder_name(checkpoint.step)
    sizes = {key: str(value) for key, value in marker.parallel.items()}
    model_id = telling.server.model(
        telling.experiment,
        telling.key(f"checkpoints/{name}/{marker.attempt:03d}"),
        name,
        attempt.run_id if attempt else telling.parent,
        step=checkpoint.step,
        params={"step": str(marker.step), "attempt": str(marker.attempt), **sizes},
        tags={
            "overland.checkpoint": clean(checkpoint.path),
            "overland.run": telling.parent,
            "overland.step": str(marker.step),
            "overland.size_bytes": str(marker.size_bytes),
            "overland.consumed_samples": str(marker.consumed_samples),
            "overland.model_fingerprint": marker.model_fingerprint,
        },
    )
    telling.cursor.checkpoints[checkpoint.step] = CheckpointCursor(model_id=model_id, files=now)
    telling.save()


def tell_evaluation(telling: Telling, evaluation: EvaluationDir) -> None:
    """Tell about the evaluation once it has scores or has failed, and again when those change."""
    now = evaluation_signature(evaluation)
    told = telling.cursor.evaluations.get(evaluation.step)
    if now in ("", told.files if told else ""):
        return
    scores, failure = evaluation.scores(), evaluation.failure()
    if scores is None and failure is None:
        return
    if told is None:
        told = _open_evaluation(telling, evaluation, scores, failure)
    elif scores is not None:
        telling.server.set_tags(told.run_id, dict.fromkeys(_FAILURE_TAGS, ""))
    if scores is not None:
        _tell_scores(telling, scores, told)
        if (report := evaluation.regressions()) is not None:
            _tell_regressions(telling, report, told)
    elif failure is not None:
        _tell_failure(telling, failure, told)
    told.files = now
    telling.save()


def _open_evaluation(
    telling: Telling,
    evaluation: EvaluationDir,
    scores: EvaluationScores | None,
    failure: EvaluationFailure | None,
) -> EvaluationCursor:
    start = scores.started_at if scores else failure.failed_at if failure else 0.0
    name = f"evaluation step {evaluation.step}"
    tags = {"overland.kind": "evaluation", "overland.step": str(evaluation.step)}
    path = f"evaluations/{step_folder_name(evaluation.step)}"
    told = EvaluationCursor(run_id=telling.open_run(path, name, start, telling.parent, tags))
    telling.cursor.evaluations[evaluation.step] = told
    telling.save()
    return told


def _tell_scores(telling: Telling, scores: EvaluationScores, told: EvaluationCursor) -> None:
    model = telling.cursor.checkpoints.get(scores.step)
    model_id = model.model_id if model else None
    if model_id is not None:
        telling.server.take_model(told.run_id, model_id)
    tasks = clean(",".join(scores.tasks))
    params = {"step": str(scores.step), "tasks": tasks, "plan_sha256": scores.plan_sha256}
    telling.server.log_params(told.run_id, params)
    points = telling.server.changed(told.run_id, score_points(scores, model_id))
    curve = [
        Point(point.key, point.value, point.time, point.step)
        for point in points
        if point.key != UNSCORED and not point.key.endswith("_stderr")
    ]
    telling.push({telling.parent: curve, told.run_id: points})
    _tell_unscored(telling, scores, told, model_id)
    key = telling.key(f"evaluations/{step_folder_name(scores.step)}")
    root = spans.evaluation_span(scores)
    telling.server.log_trace(telling.experiment, key, root, told.run_id, model_id)
    telling.server.end_run(told.run_id, "FINISHED", scores.ended_at)


def _tell_unscored(
    telling: Telling, scores: EvaluationScores, told: EvaluationCursor, model_id: str | None
) -> None:
    """Tasks that could not be scored: as tags of the evaluation and of the checkpoint's model, which
    are emptied when all have scores."""
    reasons = "; ".join(f"{task}: {reason}" for task, reason in scores.failed.items())
    tags = {
        "overland.unscored_tasks": clean(",".join(scores.failed)),
        "overland.unscored_reasons": clean(reasons),
    }
    telling.server.set_tags(told.run_id, tags)
    if model_id is not None:
        telling.server.set_model_tags(model_id, tags)


def _tell_regressions(telling: Telling, report: RegressionReport, told: EvaluationCursor) -> None:
    """As tags, to search for: of the evaluation, and of the checkpoint's model."""
    tags = {
        "overland.regressed": "true" if report.regressions else "false",
        "overland.healthy": "false" if report.unhealthy else "true",
        "overland.regressions": clean(report.said) if report.regressions else "",
    }
    telling.server.set_tags(told.run_id, tags)
    if (model := telling.cursor.checkpoints.get(report.step)) is not None:
        telling.server.set_model_tags(model.model_id, tags)


def _tell_failure(telling: Telling, failure: EvaluationFailure, told: EvaluationCursor) -> None:
    values = (clean(failure.stage), clean(failure.reason))
    telling.server.set_tags(told.run_id, dict(zip(_FAILURE_TAGS, values, strict=True)))
    telling.server.end_run(told.run_id, "FAILED", failure.failed_at)
