"""Prefect task of the evaluate stage: one checkpoint through export, inference and scoring.

Each stage is a job of its own under the launcher, at low priority (:mod:`tasks.evaluate.task_jobs`).
Scoring runs beside inference, on CPUs, and takes up each task when its last responses are there. A
stage whose output is there is skipped; a stage whose job still runs (the flow was killed) is waited
for; a failed stage is tried again by a later run, under a new key.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.logging import get_run_logger

from configs.errors import EvaluationError, JobRefusedError, OverlandError, SiteError
from configs.records import EvaluationFailure, EvaluationScores
from configs.regressions import Alert, RegressionReport
from configs.rundir import EvaluationDir, RunDir, write_record
from configs.schema import LauncherConfig, RunConfig
from infra.launch import make_launcher
from infra.webhook import SENT, post
from tasks.evaluate.folder import Say, asked_scores, evaluated
from tasks.evaluate.holding import in_charge
from tasks.evaluate.plan import config_of
from tasks.evaluate.task_ahead import Ahead
from tasks.evaluate.task_checks import check_tasks
from tasks.evaluate.task_jobs import (
    POLL_INTERVAL_S,
    EvaluationCancelled,
    StageError,
    Work,
    cancel_jobs,
    open_evaluation,
    run_stages,
    stages_left,
    work_on,
)
from tasks.evaluate.watch import alert_message, compare_new, leave_out

__all__ = [
    "Ahead",
    "EvaluationCancelled",
    "cancel_evaluations",
    "check_tasks",
    "evaluate_checkpoint",
    "evaluate_on",
    "leave_out",
    "watch_scores",
]

EVALUATION_REGRESSED = "overland.evaluation.regressed"
"""Prefect event for automations; its resource is the evaluation."""


@task(name="evaluate-checkpoint", task_run_name="evaluate-step-{step}", cache_policy=NO_CACHE)
def evaluate_checkpoint(
    config: RunConfig,
    step: int,
    stop: threading.Event | None = None,
    meanwhile: Callable[[], None] = lambda: None,
    say: Say = lambda text: None,
) -> EvaluationScores | None:
    """Score one committed checkpoint; None when that failed (failure.json says why).

    A failed evaluation is a fact about the checkpoint, not an error of the run. `stop` cancels the
    stage that runs; `meanwhile` is called now and then; `say` tells whoever looks on that a job waits.
    Scores that are there stay, unless the checkpoint was saved again since: to evaluate anew, remove the
    evaluation's folder.
    """
    evaluation = RunDir(config.resolved_run_dir()).evaluation(step)
    if (scores := evaluation.scores()) is not None:
        return scores
    halt = stop or threading.Event()

    def wait() -> None:
        if halt.wait(POLL_INTERVAL_S):
            raise EvaluationCancelled

    try:
        work = work_on(config, step, make_launcher(config.launcher), get_run_logger().warning, say)
        with in_charge(evaluation, wait):
            if (scores := evaluation.scores()) is None:  # nobody has scored it meanwhile
                scores = _evaluated(work, halt, meanwhile)
    except (OverlandError, OSError) as error:
        stage = error.stage if isinstance(error, StageError) else "export"
        failure = EvaluationFailure(
            step=step, stage=stage, reason=str(error), failed_at=time.time()
        )
        write_record(evaluation.failure_path, failure)
        get_run_logger().error("evaluation of step %d failed at %s: %s", step, stage, error)
        return None
    for name, reason in scores.failed.items():
        get_run_logger().error("step %d lacks scores of %s: %s", step, name, reason)
    return scores


def _evaluated(
    work: Work, halt: threading.Event, meanwhile: Callable[[], None]
) -> EvaluationScores:
    if open_evaluation(work):
        run_stages(work, ["export"], halt, meanwhile)
    run_stages(work, stages_left(work), halt, meanwhile)
    if work.evaluation.scores() is None:
        raise EvaluationError("the checkpoint was saved again meanwhile: evaluate it anew")
    return asked_scores(work.evaluation)


def evaluate_on(launcher: LauncherConfig, evaluation: EvaluationDir, say: Say) -> EvaluationScores:
    """Score a model's folder by jobs under a launcher. They go on when this process is killed; the same
    call again waits for them. SiteError when the cluster cannot give what they ask for."""
    work = Work(
        name=f"{evaluation.path.name}-{{stage}}",
        evaluation=evaluation,
        arguments=(str(evaluation.path),),
        settings=config_of(evaluation),
        launch=launcher,
        launcher=make_launcher(launcher),
        warn=say,
        say=say,
    )

    def run(look: Callable[[], None]) -> None:
        try:
            run_stages(work, stages_left(work), threading.Event(), look)
        except JobRefusedError as error:
            raise SiteError(str(error)) from error

    return evaluated(evaluation, say, run)


def watch_scores(config: RunConfig) -> None:
    """Compare every new set of scores with those before it, and tell of what has regressed.

    Called after each evaluation, and once by each flow for what a killed one had not told. Nothing that
    goes wrong here reaches the run: scores stay, and the log says what is missing.
    """
    logger = get_run_logger()
    run, settings = RunDir(config.resolved_run_dir()), config.evaluate.regressions
    try:
        for report in compare_new(run, settings) if settings.enabled else ():
            if report.not_found:
                logger.warning(
                    "evaluate.regressions names %s, which step %d has no score of",
                    ", ".join(report.not_found),
                    report.step,
                )
            if report.regressions:
                passed_over = "; it counts as not healthy" if report.unhealthy else ""
                logger.warning("step %d has regressed: %s%s", report.step, report.said, passed_over)
            if report.alert is not None:
                told = report.model_copy(update={"alert": _alert(config, run, report)})
                write_record(run.evaluation(report.step).regressions_path, told)
    except OSError as error:
        logger.warning("regressions below %s cannot be recorded: %s", run.evaluations_dir, error)


def _alert(config: RunConfig, run: RunDir, report: RegressionReport) -> Alert:
    """Tell of the report: to Prefect, and to the webhook where there is one."""
    message = alert_message(run, config.name, EVALUATION_REGRESSED, report)
    return Alert(event=_emit(config, run, report, message), webhook=_call_webhook(config, message))


def _emit(config: RunConfig, run: RunDir, report: RegressionReport, message: dict[str, Any]) -> str:
    resource = {
        "prefect.resource.id": f"overland.evaluation.{config.name}.{report.step}",
        "overland.run_dir": str(run.path),
        "overland.step": str(report.step),
        "overland.health": "unhealthy" if report.unhealthy else "unmarked",
    }
    try:
        emit_event(EVALUATION_REGRESSED, resource=resource, payload=message)
    except Exception as error:
        get_run_logger().warning("Prefect was not told of the regression", exc_info=True)
        return f"not emitted ({type(error).__name__})"
    return "emitted"


def _call_webhook(config: RunConfig, message: dict[str, Any]) -> str:
    settings = config.evaluate.regressions
    if settings.webhook_env is None:
        return "unset"
    url = os.environ.get(settings.webhook_env)
    if not url:
        get_run_logger().warning("no alert is posted: %s is not set", settings.webhook_env)
        return "unset"
    said = post(url, message, timeout_s=settings.webhook_timeout_s, tries=settings.webhook_tries)
    if said != SENT:
        get_run_logger().warning("the webhook of %s: %s", settings.webhook_env, said)
    return said


def cancel_evaluations(config: RunConfig) -> None:
    """End the evaluation jobs that still run, for a flow that waits for them no more."""
    launcher = make_launcher(config.launcher)
    for evaluation in RunDir(config.resolved_run_dir()).evaluations():
        cancel_jobs(launcher, evaluation)
