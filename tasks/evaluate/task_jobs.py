"""An evaluation's jobs under the launcher: submitted, waited for, submitted again when they gave way.

Inference is one job; on a cluster it has up to `evaluate.nodes` nodes, on each of which the same program
stages the model and has a worker on each GPU. Scoring runs beside it on CPUs. On Slurm it starts after
inference has: in the queue it holds nothing; and inference after the job that has made the plan: GPUs do
not wait for that.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.errors import EXIT_BAD_INPUT, EvaluationError, JobRefusedError
from configs.files import write_text
from configs.full_disk import with_room_note
from configs.rundir import EvaluationDir, RunDir
from configs.schema import EvaluateConfig, LauncherConfig, RunConfig
from infra.interrupt import held_off, raise_if_interrupted
from infra.launch.base import JobHandle, JobSpec, JobState, JobStatus, Launcher
from infra.launch.news import JobNews, Say
from tasks.evaluate.command import last_words
from tasks.evaluate.devices import SLOTS_VARIABLE
from tasks.evaluate.infer import is_inferred
from tasks.evaluate.plan import current_plan, devices_of, inputs_sha256, worker_names

POLL_INTERVAL_S = 0.25
_LOG_TAIL_BYTES = 4096
_LONG_WAIT_S = 10.0
"""Of a job in a queue, which is worth a word."""
_NOT_ITS_FAULT = (JobState.PREEMPTED, JobState.NODE_FAIL)
_RESUBMISSIONS = 20
"""Of a job that gave way to training, say, which happens more than once in a long run."""
_FOLLOW = ("--follow",)
_OF_EXPORT = ("plan", "infer", "score")
_AFTER = {"infer": ("plan", "afterany"), "score": ("infer", "after")}
"""On Slurm: stage -> the one whose end, or begin, it waits for."""
STAGES = {
    "export": "tasks.train.export",
    "plan": "tasks.evaluate.make_plan",
    "infer": "tasks.evaluate.infer",
    "score": "tasks.evaluate.score",
}


def _to_nobody(text: str) -> None:
    """Where nobody looks on."""


class EvaluationCancelled(Exception):  # noqa: N818  (no error: somebody wanted it)
    """The run is being stopped; the evaluation's job was cancelled."""


class StageError(EvaluationError):
    """A stage's job has failed."""

    def __init__(self, stage: str, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.stage = stage
        if stage != "export" and exit_code == EXIT_BAD_INPUT:
            self.exit_code = EXIT_BAD_INPUT  # the tasks' files are wrong


@dataclass(frozen=True)
class Work:
    """One evaluation, and how its jobs are run."""

    name: str
    """For people: squeue, ps."""
    evaluation: EvaluationDir
    arguments: tuple[str, ...]
    """How a stage's program finds it; see :mod:`tasks.evaluate.command`."""
    settings: EvaluateConfig
    launch: LauncherConfig
    launcher: Launcher
    warn: Callable[[str], None]
    say: Say = _to_nobody
    """Tells whoever looks on that a job waits."""

    @property
    def on_slurm(self) -> bool:
        return self.launch.kind == "slurm"


def work_on(
    config: RunConfig,
    step: int,
    launcher: Launcher,
    warn: Callable[[str], None],
    say: Say = _to_nobody,
) -> Work:
    """The work on a run's checkpoint."""
    run_dir = config.resolved_run_dir()
    return Work(
        name=f"{config.name}-{{stage}}-{step}",
        evaluation=RunDir(run_dir).evaluation(step),
        arguments=(str(run_dir), str(step)),
        settings=config.evaluate,
        launch=config.launcher,
        launcher=launcher,
        warn=warn,
        say=say,
    )


def open_evaluation(work: Work) -> bool:
    """Make its folder one that is evaluated now; returns whether the checkpoint must be exported first."""
    evaluation = work.evaluation
    write_text(evaluation.config_path, work.settings.model_dump_json(indent=2) + "\n")
    evaluation.failure_path.unlink(missing_ok=True)
    evaluation.left_out_path.unlink(missing_ok=True)  # a person wants it after all
    evaluation.scores_path.unlink(missing_ok=True)  # of an earlier checkpoint of this step
    if evaluation.export() is not None:
        return False
    cancel_jobs(work.launcher, evaluation, *_OF_EXPORT)  # they read an earlier one
    evaluation.inferred_path.unlink(missing_ok=True)
    return True


def stages_left(work: Work) -> list[str]:
    """What is to be done once the model is there. Inference skips what is answered of its shards."""
    if is_inferred(work.evaluation):
        return ["score"]
    is_planned = current_plan(work.settings, work.evaluation) is not None
    return ["infer", "score"] if is_planned or not work.on_slurm else ["plan", "infer", "score"]


def run_stages(
    work: Work,
    stages: Sequence[str],
    stop: threading.Event,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Run the stages' jobs at the same time; when one fails, those after it are ended.

    `meanwhile` is called now and then while they run.
    """
    handles: dict[str, JobHandle] = {}
    try:
        for stage in stages:
            handles[stage] = begin_stage(work, stage, handles)
        inferred_at = time.time()
        for stage in stages:
            status = _wait(work, stage, handles[stage], stop, meanwhile)
            for _ in range(_RESUBMISSIONS):
                if not gave_way(stage, status, inferred_at, work.settings.timeout_s):
                    break
                work.warn(f"the {stage} job is submitted again: {status.reason or status.state}")
                handles[stage] = _submit(work, stage, {})
                status = _wait(work, stage, handles[stage], stop, meanwhile)
            if status.state is not JobState.COMPLETED and not _is_done(work, stage):
                words = _what_failed(work.launcher, handles[stage], status)
                raise StageError(stage, words, status.exit_code)
            inferred_at = status.ended_at or time.time()
    except (StageError, EvaluationCancelled, JobRefusedError, KeyboardInterrupt):
        with held_off():
            for handle in handles.values():
                work.launcher.cancel(handle)
        raise


def begin_stage(work: Work, stage: str, others: Mapping[str, JobHandle]) -> JobHandle:
    """The stage's job that an earlier flow left running, or a new one, which may wait for one of `others`.

    Jobs that answer another question, which an earlier command left running, are ended first.
    """
    if stage != "export":
        _cancel_others(work)
    live = next(_live_jobs(work.launcher, work.evaluation, stage), None)
    return live or _submit(work, stage, others)


def _question(work: Work) -> str:
    """Hash of what is asked, and of which model."""
    return inputs_sha256(work.settings, work.evaluation)


def _cancel_others(work: Work) -> None:
    question = _question(work)
    for stage in _OF_EXPORT:
        for handle in _live_jobs(work.launcher, work.evaluation, stage):
            path = _question_path(work.evaluation, handle.job_dir)
            if not path.is_file() or path.read_text() != question:
                work.warn(f"{handle.job_dir.name} answers an earlier question: it is ended")
                work.launcher.cancel(handle)


def _question_path(evaluation: EvaluationDir, job_dir: Path) -> Path:
    """What a job was begun for. Beside the jobs' own folders, which are the launcher's."""
    return evaluation.path / "asked" / job_dir.name


def gave_way(stage: str, status: JobStatus, inferred_at: float, limit_s: float) -> bool:
    """Whether the job was ended for others' sake: itself, or the inference that scoring waited for,
    which left it no time of its own."""
    if status.state in _NOT_ITS_FAULT:
        return True
    out_of_time = stage == "score" and status.state is JobState.TIMEOUT
    return out_of_time and inferred_at - (status.started_at or inferred_at) > limit_s


def _is_done(work: Work, stage: str) -> bool:
    """Whether the job has done its work all the same: others went on when one of its nodes was lost."""
    return stage == "infer" and is_inferred(work.evaluation)


def _submit(work: Work, stage: str, others: Mapping[str, JobHandle]) -> JobHandle:
    job_dir = free_job_dir(work.launcher, work.evaluation, stage)
    if stage != "export":
        write_text(_question_path(work.evaluation, job_dir), _question(work))
    return work.launcher.submit(job_spec(work, stage, job_dir, others))


def job_spec(work: Work, stage: str, job_dir: Path, others: Mapping[str, JobHandle]) -> JobSpec:
    """What the stage's job is."""
    settings, follow = work.settings, _FOLLOW if stage == "score" else ()
    limit_s = settings.timeout_s
    many = stage == "infer" and work.on_slurm
    slots = work.evaluation.path.parent / "slots"
    processes = {"infer": len(worker_names(settings)), "score": settings.scorers}
    return JobSpec(
        key=str(job_dir),
        name=work.name.format(stage=stage),
        argv=(sys.executable, "-m", STAGES[stage], *work.arguments, *follow),
        job_dir=job_dir,
        environment={
            # Evaluation takes what training leaves of the machine.
            "OMP_NUM_THREADS": "1",
            # Only workers use GPUs, each the one that its crew gives it.
            "CUDA_VISIBLE_DEVICES": "",
            # A folder of the user's that is called configs/ or tasks/ is not ours.
            "PYTHONSAFEPATH": "1",
            # Slurm itself sees to it that two jobs don't share a GPU.
            **({} if work.on_slurm else {SLOTS_VARIABLE: str(slots)}),
        },
        time_limit_s=2 * limit_s
        if stage == "score"
        else limit_s,  # it begins with inference, and ends later
        each_node=many and settings.nodes > 1,
        more_nodes=settings.nodes - 1 if many else 0,
        processes_per_node=processes.get(stage, 1),
        gpus_per_node=len(devices_of(settings)) if stage == "infer" else 0,
        low_priority=True,
        cpu_only=stage != "infer",
        dependency=_dependency(stage, others) if work.on_slurm else None,
    )


def _dependency(stage: str, others: Mapping[str, JobHandle]) -> str | None:
    other, how = _AFTER.get(stage, ("", ""))
    return f"{how}:{others[other].job_id}" if other in others else None


def free_job_dir(launcher: Launcher, evaluation: EvaluationDir, stage: str) -> Path:
    """The first folder without a job on record. A flow that was killed while it submitted one may have
    left such a folder: submitted there again, the job is found, not started twice."""
    number = 1
    while launcher.find(evaluation.job_dir(f"{stage}-{number}")) is not None:
        number += 1
    return evaluation.job_dir(f"{stage}-{number}")


def _live_jobs(launcher: Launcher, evaluation: EvaluationDir, stage: str) -> Iterator[JobHandle]:
    """The stage's jobs that an earlier flow left running."""
    for job_dir in sorted(evaluation.job_dir(stage).parent.glob(f"{stage}-*")):
        handle = launcher.find(job_dir)
        if handle is not None and not launcher.poll(handle).state.final:
            yield handle


def cancel_jobs(launcher: Launcher, evaluation: EvaluationDir, *stages: str) -> None:
    """End those of the stages' jobs that run."""
    for stage in stages or STAGES:
        for handle in _live_jobs(launcher, evaluation, stage):
            launcher.cancel(handle)


def _wait(
    work: Work,
    stage: str,
    handle: JobHandle,
    stop: threading.Event,
    meanwhile: Callable[[], None],
) -> JobStatus:
    """Wait for the job's end, unless it is to `stop`, or an interrupt comes from the keyboard."""
    what = f"job {handle.job_id} ({work.name.format(stage=stage)})"
    news = JobNews(what, work.say, settle_s=_LONG_WAIT_S, starts=False)
    while not (status := work.launcher.poll(handle)).state.final:
        raise_if_interrupted()
        if work.on_slurm:
            news.see(status)
        meanwhile()
        if stop.wait(POLL_INTERVAL_S):
            raise EvaluationCancelled
    return status


def _what_failed(launcher: Launcher, handle: JobHandle, status: JobStatus) -> str:
    """The last lines that the job wrote, which are its error's sentences, and where to read more: not of
    wrong input, of which nothing is kept."""
    lines: list[str] = []
    for log in launcher.logs(handle):
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            lines += file.read().decode(errors="replace").splitlines()
    said = last_words(lines, otherwise=status.reason)
    if status.exit_code == EXIT_BAD_INPUT:
        return said
    return f"{with_room_note(said, handle.job_dir)} ({status.state}, see {handle.job_dir})"
