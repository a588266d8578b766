"""Prefect task of the evaluate stage: one checkpoint through export, inference and scoring.

Each stage is a job of its own under the launcher, at low priority. Scoring runs beside inference, on
CPUs, and takes up each task when its last responses are there. A stage whose output is there is
skipped; a stage whose job still runs (the flow was killed) is waited for; a failed stage is tried
again by a later run, under a new key.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.logging import get_run_logger

from configs.errors import EvaluationError, OverlandError
from configs.files import write_text
from configs.records import EvaluationFailure, EvaluationScores
from configs.regressions import Alert, RegressionReport
from configs.rundir import EvaluationDir, RunDir, write_record
from configs.schema import RunConfig
from infra.interrupt import held_off, raise_if_interrupted
from infra.launch import make_launcher
from infra.launch.base import JobHandle, JobSpec, JobState, JobStatus, Launcher
from infra.webhook import SENT, post
from tasks.evaluate.plan import check_tasks, devices_of
from tasks.evaluate.watch import alert_message, compare_new, leave_out

__all__ = [
    "EvaluationCancelled",
    "cancel_evaluations",
    "check_tasks",
    "evaluate_checkpoint",
    "leave_out",
    "watch_scores",
]

POLL_INTERVAL_S = 0.25
_LOG_TAIL_BYTES = 4096
_NOT_ITS_FAULT = (JobState.PREEMPTED, JobState.NODE_FAIL)
_RESUBMISSIONS = 20
"""Of a job that gave way to training, say, which happens more than once in a long run."""
EVALUATION_REGRESSED = "overland.evaluation.regressed"
"""Prefect event for automations; its resource is the evaluation."""
STAGES = {
    "export": "tasks.train.export",
    "infer": "tasks.evaluate.infer",
    "score": "tasks.evaluate.score",
}


class EvaluationCancelled(Exception):  # noqa: N818  (no error: somebody wanted it)
    """The run is being stopped; the evaluation's job was cancelled."""


@task(name="evaluate-checkpoint", task_run_name="evaluate-step-{step}", cache_policy=NO_CACHE)
def evaluate_checkpoint(
    config: RunConfig, step: int, stop: threading.Event | None = None
) -> EvaluationScores | None:
    """Score one committed checkpoint; None when that failed (failure.json says why).

    A failed evaluation is a fact about the checkpoint, not an error of the run. `stop` cancels the
    stage that runs. Scores that are there stay, unless the checkpoint was saved again since: to
    evaluate anew, remove the evaluation's folder.
    """
    evaluation = RunDir(config.resolved_run_dir()).evaluation(step)
    if (scores := evaluation.scores()) is not None:
        return scores
    halt = stop or threading.Event()
    try:
        write_text(evaluation.config_path, config.evaluate.model_dump_json(indent=2) + "\n")
        evaluation.failure_path.unlink(missing_ok=True)
        evaluation.left_out_path.unlink(missing_ok=True)  # a person wants it after all
        evaluation.scores_path.unlink(missing_ok=True)  # of an earlier checkpoint of this step
        if evaluation.export() is None:
            # Others read an earlier export.
            _cancel_jobs(make_launcher(config.launcher), evaluation, "infer", "score")
            evaluation.inferred_path.unlink(missing_ok=True)
            _run_stages(config, evaluation, ["export"], halt)
        # Inference always gets a job: it skips its finished shards.
        _run_stages(config, evaluation, ["infer", "score"], halt)
        if (scores := evaluation.scores()) is None:
            raise EvaluationError("the checkpoint was saved again meanwhile: evaluate it anew")
    except (OverlandError, OSError) as error:
        stage = error.stage if isinstance(error, _StageError) else "export"
        failure = EvaluationFailure(
            step=step, stage=stage, reason=str(error), failed_at=time.time()
        )
        write_record(evaluation.failure_path, failure)
        get_run_logger().error("evaluation of step %d failed at %s: %s", step, stage, error)
        return None
    return scores


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


class _StageError(EvaluationError):
    """A stage's job has failed."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


def _run_stages(
    config: RunConfig, evaluation: EvaluationDir, stages: list[str], stop: threading.Event
) -> None:
    """Run the stages' jobs at the same time; when one fails, those after it are ended."""
    launcher = make_launcher(config.launcher)
    handles: dict[str, JobHandle] = {}
    try:
        for stage in stages:
            live = _live_job(launcher, evaluation, stage)
            handles[stage] = live or _submit(config, launcher, evaluation, stage)
        inferred_at = time.time()
        for stage in stages:
            status = _wait(launcher, handles[stage], stop)
            for _ in range(_RESUBMISSIONS):
                if not _gave_way(stage, status, inferred_at, config.evaluate.timeout_s):
                    break
                why = status.reason or status.state
                get_run_logger().warning("the %s job is submitted again: %s", stage, why)
                handles[stage] = _submit(config, launcher, evaluation, stage)
                status = _wait(launcher, handles[stage], stop)
            if status.state is not JobState.COMPLETED:
                raise _StageError(stage, _what_failed(launcher, handles[stage], status))
            inferred_at = status.ended_at or time.time()
    except (_StageError, EvaluationCancelled, KeyboardInterrupt):
        with held_off():
            for handle in handles.values():
                launcher.cancel(handle)
        raise


def _gave_way(stage: str, status: JobStatus, inferred_at: float, limit_s: float) -> bool:
    """Whether the job was ended for others' sake: itself, or the inference that scoring waited for,
    which left it no time of its own."""
    if status.state in _NOT_ITS_FAULT:
        return True
    out_of_time = stage == "score" and status.state is JobState.TIMEOUT
    return out_of_time and inferred_at - (status.started_at or inferred_at) > limit_s


def _submit(
    config: RunConfig, launcher: Launcher, evaluation: EvaluationDir, stage: str
) -> JobHandle:
    job_dir = _free_job_dir(launcher, evaluation, stage)
    return launcher.submit(_job(config, evaluation, stage, job_dir))


def _job(config: RunConfig, evaluation: EvaluationDir, stage: str, job_dir: Path) -> JobSpec:
    run_dir = str(config.resolved_run_dir())
    follow = ("--follow",) if stage == "score" else ()
    limit_s = config.evaluate.timeout_s
    return JobSpec(
        key=str(job_dir),
        name=f"{config.name}-{stage}-{evaluation.step}",
        argv=(sys.executable, "-m", STAGES[stage], run_dir, str(evaluation.step), *follow),
        job_dir=job_dir,
        environment={
            # Evaluation takes what training leaves of the machine.
            "OMP_NUM_THREADS": "1",
            # Only workers use GPUs, each the one that its crew gives it.
            "CUDA_VISIBLE_DEVICES": "",
            # A folder of the user's that is called configs/ or tasks/ is not ours.
            "PYTHONSAFEPATH": "1",
        },
        time_limit_s=2 * limit_s if follow else limit_s,  # it begins with inference, and ends later
        gpus_per_node=len(devices_of(config.evaluate)) if stage == "infer" else 0,
        low_priority=True,
        cpu_only=stage != "infer",
    )


def _free_job_dir(launcher: Launcher, evaluation: EvaluationDir, stage: str) -> Path:
    """The first folder without a job on record. A flow that was killed while it submitted one may have
    left such a folder: submitted there again, the job is found, not started twice."""
    number = 1
    while launcher.find(evaluation.job_dir(f"{stage}-{number}")) is not None:
        number += 1
    return evaluation.job_dir(f"{stage}-{number}")


def _live_job(launcher: Launcher, evaluation: EvaluationDir, stage: str) -> JobHandle | None:
    """The stage's job that an earlier flow left running."""
    for job_dir in sorted(evaluation.job_dir(stage).parent.glob(f"{stage}-*")):
        handle = launcher.find(job_dir)
        if handle is not None and not launcher.poll(handle).state.final:
            return handle
    return None


def _wait(launcher: Launcher, handle: JobHandle, stop: threading.Event) -> JobStatus:
    """Wait for the job's end, unless it is to `stop`, or an interrupt comes from the keyboard."""
    while not (status := launcher.poll(handle)).state.final:
        raise_if_interrupted()
        if stop.wait(POLL_INTERVAL_S):
            raise EvaluationCancelled
    return status


def cancel_evaluations(config: RunConfig) -> None:
    """End the evaluation jobs that still run, for a flow that waits for them no more."""
    launcher = make_launcher(config.launcher)
    for evaluation in RunDir(config.resolved_run_dir()).evaluations():
        _cancel_jobs(launcher, evaluation, *STAGES)


def _cancel_jobs(launcher: Launcher, evaluation: EvaluationDir, *stages: str) -> None:
    for stage in stages:
        if (handle := _live_job(launcher, evaluation, stage)) is not None:
            launcher.cancel(handle)


def _what_failed(launcher: Launcher, handle: JobHandle, status: JobStatus) -> str:
    """The last line that the job wrote, which is its error's sentence, and where to read more."""
    lines: list[str] = []
    for log in launcher.logs(handle):
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            lines += file.read().decode(errors="replace").splitlines()
    said = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return f"{said.removeprefix('error: ')} ({status.state}, see {handle.job_dir})"
