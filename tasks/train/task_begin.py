"""Beginning an attempt: its folder, its job, its record.

The attempt's folder is the state. Its config is written first, then the job is submitted under the
folder's name as key, then the record is written: a flow that is killed between any two of these and
started again finds the job, or submits it, but never has two.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.errors import JobRefusedError, LaunchError, SiteError
from configs.files import write_text
from configs.records import AttemptRecord
from configs.rundir import AttemptDir, RunDir, write_record
from configs.schema import RunConfig
from infra.interrupt import raise_if_interrupted
from infra.launch import make_launcher
from infra.launch.base import JobHandle, JobSpec
from tasks.train.outcome import is_saved, saved_step


@task(name="begin-attempt", cache_policy=NO_CACHE)
def begin_attempt(config: RunConfig, exclude: Sequence[str] = ()) -> int | None:
    """Number of the attempt to watch: the last one if it may still run, else a new one, which does
    without the nodes `exclude`.

    None when training is finished, and its last checkpoint still there.
    """
    raise_if_interrupted()
    run = RunDir(config.resolved_run_dir())
    attempts = run.attempts()
    if not attempts:
        return _start(config, run.attempt(1), exclude)
    last = attempts[-1]
    record = last.record()
    if record is None:
        # The flow was killed around the submission; the key tells whether the job exists.
        return _start(config, last, exclude)
    if record.outcome is None:
        get_run_logger().info("attempt %d is picked up again", last.number)
        return last.number
    if record.outcome == "completed":
        if is_saved(run, config.train.steps):
            return None
        get_run_logger().warning(
            "attempt %d was complete, but the checkpoint of step %d is not there any more, or is not "
            "whole: training goes on from step %d",
            last.number,
            config.train.steps,
            saved_step(run),
        )
    return _start(config, run.attempt(last.number + 1), exclude)


def _start(config: RunConfig, attempt: AttemptDir, exclude: Sequence[str]) -> int:
    launcher = make_launcher(config.launcher)
    handle = launcher.find(attempt.job_dir)
    if handle is None:
        write_text(attempt.config_path, config.model_dump_json(indent=2) + "\n")
        try:
            handle = launcher.submit(_job(config, attempt, exclude))
        except LaunchError as error:
            _forget(attempt)
            if isinstance(error, JobRefusedError) and attempt.number == 1:
                raise SiteError(str(error)) from error
            raise
    write_record(attempt.record_path, new_record(attempt, handle))
    get_run_logger().info("attempt %d is job %s", attempt.number, handle.job_id)
    return attempt.number


def _forget(attempt: AttemptDir) -> None:
    """Take the folder of an attempt away that has no job: it would look like one that failed. What a
    request may still need, the launcher has left there."""
    if attempt.job_dir.exists():
        return
    with suppress(OSError):  # There is more in it: a later start goes on there.
        attempt.config_path.unlink(missing_ok=True)
        attempt.path.rmdir()
        if attempt.number == 1:
            attempt.path.parent.rmdir()


def new_record(attempt: AttemptDir, handle: JobHandle) -> AttemptRecord:
    """Of an attempt whose job was just submitted."""
    return AttemptRecord(
        number=attempt.number,
        key=handle.key,
        job_id=handle.job_id,
        submitted_at=handle.submitted_at,
    )


def _job(config: RunConfig, attempt: AttemptDir, exclude: Sequence[str]) -> JobSpec:
    run_dir = config.resolved_run_dir()
    return JobSpec(
        key=str(attempt.path),
        name=f"{config.name}-train-{attempt.number:03d}",
        argv=("-m", "tasks.train.job", str(run_dir), "--attempt", str(attempt.number)),
        job_dir=attempt.job_dir,
        # A folder of the user's that is called configs/ or tasks/ is not ours.
        environment={"PYTHONSAFEPATH": "1"},
        distributed=True,
        nodes=config.launcher.nodes,
        processes_per_node=config.launcher.processes_per_node,
        grace_s=config.recovery.stop_grace_s,
        exclude_nodes=tuple(exclude),
        dependency=_dependency(config),
    )


def _dependency(config: RunConfig) -> str | None:
    """Once training has begun it has been met, and Slurm may have forgotten the jobs that it names."""
    begun = any(attempt.events() for attempt in RunDir(config.resolved_run_dir()).attempts())
    return None if begun or config.launcher.kind != "slurm" else config.launcher.slurm.dependency
