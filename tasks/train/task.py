"""Prefect tasks of the pretrain stage: begin an attempt, and watch it to its end.

The attempt's folder is the state. Its config is written first, then the job is submitted under the
folder's name as key, then the record is written: a flow that is killed between any two of these and
started again finds the job, or submits it, but never has two.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.logging import get_run_logger

from configs.errors import LaunchError
from configs.events import CheckpointEvent
from configs.files import write_text
from configs.records import AttemptRecord
from configs.rundir import AttemptDir, RunDir, write_record
from configs.schema import RunConfig
from configs.stacks import RankStack
from infra.interrupt import held_off, raise_if_interrupted
from infra.launch import make_launcher
from infra.launch.base import JobHandle, JobSpec, JobState, JobStatus, Launcher
from tasks.train.liveness import Liveness
from tasks.train.outcome import JobEnd, end_of, is_saved, made_steps, outcome_of, saved_step
from tasks.train.removal import remove_unneeded_checkpoints
from tasks.train.stop import STOP_FILE
from tasks.train.storage import require_storage

__all__ = ["STOP_FILE", "remove_unneeded_checkpoints", "require_storage", "saved_step"]

POLL_INTERVAL_S = 0.5
STACKS_TIMEOUT_S = 30.0
HUNG_GRACE_S = 5.0
"""A job that hangs has nothing to save; its ranks may have a word to say about their end."""
CHECKPOINT_COMMITTED = "overland.checkpoint.committed"
"""Prefect event that deployments can be triggered by; its resource is the checkpoint's folder."""


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
        handle = launcher.submit(_job(config, attempt, exclude))
    write_record(attempt.record_path, _new_record(attempt, handle))
    get_run_logger().info("attempt %d is job %s", attempt.number, handle.job_id)
    return attempt.number


def _new_record(attempt: AttemptDir, handle: JobHandle) -> AttemptRecord:
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


@task(name="watch-attempt", cache_policy=NO_CACHE)
def watch_attempt(
    config: RunConfig, number: int, *, announce: bool, restarted: bool = False
) -> AttemptRecord:
    """Wait for the attempt's end, end it when it hangs, and write how it ended.

    `restarted`: a server has started the flow again, not a person.

    `announce` emits a Prefect event for every committed checkpoint, for deployments to react to.
    An interrupt from the keyboard cancels the job, which may save before it leaves; a flow that dies
    otherwise leaves it running.
    """
    run = RunDir(config.resolved_run_dir())
    attempt = run.attempt(number)
    record = attempt.record()
    launcher = make_launcher(config.launcher)
    handle = launcher.find(attempt.job_dir)
    if record is None or handle is None:
        raise LaunchError(
            f"attempt {number} has no job in {attempt.job_dir}: it was deleted by hand; remove "
            f"{attempt.path} too if nothing of it runs any more"
        )
    was_meant = restarted and config.launcher.kind == "slurm"
    status = launcher.poll(handle)
    if status.state is JobState.CANCELLED and not (record.hung or was_meant):
        # While no flow watched, somebody ended it, or the machine went down: who starts the run
        # again wants it to go on. A server wants nothing, and a scancel is a person's word.
        return _end(run, attempt, record, status, cancelled="cancelled while no flow watched")
    try:
        status = _watch(config, attempt, launcher, handle, announce)
    except KeyboardInterrupt:
        with held_off():
            _cancel(config, attempt, record, launcher, handle, why="interrupted from the keyboard")
        raise
    return _end(run, attempt, attempt.record() or record, status)


def _watch(
    config: RunConfig,
    attempt: AttemptDir,
    launcher: Launcher,
    handle: JobHandle,
    announce: bool,
) -> JobStatus:
    """Poll until the job has ended, by itself or because it hung."""
    liveness = Liveness(config, last_sign_of_life=time.monotonic())
    offset_bytes = 0
    while True:
        raise_if_interrupted()
        status = launcher.poll(handle)
        events, offset_bytes = attempt.events_from(offset_bytes)
        for event in events:
            liveness.see(event, now=time.monotonic())
            if announce and isinstance(event, CheckpointEvent) and event.outcome == "committed":
                _announce_checkpoint(config, event)
        if status.state.final:
            return status
        if status.state is JobState.PENDING or status.suspended:
            liveness.waits_for_nodes(time.monotonic())
        # While the scheduler is away, a job that is silent has more likely ended than it hangs.
        hung = not status.stale and liveness.hung(time.monotonic())
        if hung and _does_hang(config, launcher, handle, liveness):
            _end_hung_job(attempt, launcher, handle, liveness.limit_s)
            return launcher.poll(handle)
        time.sleep(POLL_INTERVAL_S)


def _does_hang(
    config: RunConfig, launcher: Launcher, handle: JobHandle, liveness: Liveness
) -> bool:
    """Look at all ranks before anything is ended. Those that all wait for a save (they were asked to
    stop, maybe by a scheduler) do not hang, and get the time that a save may take."""
    logger = get_run_logger()
    try:
        paths = launcher.stacks(handle, timeout_s=STACKS_TIMEOUT_S)
    except LaunchError as error:
        logger.warning("the ranks could not be looked at: %s", error)
        return True
    logger.info("stacks of %d of %d ranks", len(paths), config.parallel.world_size)
    if liveness.save_is_awaited or not _all_save(paths, config.parallel.world_size):
        return True
    liveness.save_is_awaited = True
    return liveness.hung(time.monotonic())


def _all_save(paths: Sequence[Path], ranks: int) -> bool:
    stacks = [RankStack.model_validate_json(path.read_bytes()) for path in paths]
    saving = [s for s in stacks if s.phase == "save" and s.state != "stopped"]
    return len(saving) == ranks


def _end_hung_job(
    attempt: AttemptDir, launcher: Launcher, handle: JobHandle, limit_s: float
) -> None:
    """Cancel the job; that it hung is on record before, for a flow that is killed meanwhile."""
    record = attempt.record()
    if record is None:
        raise LaunchError(f"{attempt.record_path} was deleted while its job ran: restore it")
    hung = f"no sign of life for {limit_s:.0f} s"
    get_run_logger().warning("attempt %d hangs: %s", attempt.number, hung)
    write_record(attempt.record_path, record.model_copy(update={"hung": True, "reason": hung}))
    launcher.cancel(handle, grace_s=HUNG_GRACE_S)


def _announce_checkpoint(config: RunConfig, event: CheckpointEvent) -> None:
    run = RunDir(config.resolved_run_dir())
    resource = {
        "prefect.resource.id": f"overland.checkpoint.{config.name}.{event.step}",
        "overland.run_dir": str(run.path),
        "overland.step": str(event.step),
        "overland.evaluate": "wanted" if config.evaluate.enabled else "unwanted",
    }
    emit_event(CHECKPOINT_COMMITTED, resource=resource)


def cancel_attempt(config: RunConfig, *, why: str) -> None:
    """End the job of the newest attempt, if it has not ended, for a flow that watches it no more."""
    attempts = RunDir(config.resolved_run_dir()).attempts()
    launcher = make_launcher(config.launcher)
    handle = launcher.find(attempts[-1].job_dir) if attempts else None
    if handle is None:
        return
    record = attempts[-1].record() or _new_record(attempts[-1], handle)
    if record.outcome is None:
        _cancel(config, attempts[-1], record, launcher, handle, why=why)


def _cancel(
    config: RunConfig,
    attempt: AttemptDir,
    record: AttemptRecord,
    launcher: Launcher,
    handle: JobHandle,
    *,
    why: str,
) -> None:
    launcher.cancel(handle, grace_s=config.recovery.stop_grace_s)
    run = RunDir(config.resolved_run_dir())
    _end(run, attempt, record, launcher.poll(handle), cancelled=why)


def _end(
    run: RunDir,
    attempt: AttemptDir,
    record: AttemptRecord,
    status: JobStatus,
    *,
    cancelled: str = "",
) -> AttemptRecord:
    """Write how the attempt ended; `cancelled` says why, when a person wanted it."""
    job = JobEnd(status.state, status.exit_code, status.reason)
    hung = record.reason if record.hung else ""
    outcome, reason = outcome_of(run, attempt, job, cancelled=cancelled, hung=hung)
    ended = record.model_copy(
        update={
            "ended_at": status.ended_at or time.time(),
            "outcome": outcome,
            "exit_code": status.exit_code,
            "signal": status.signal,
            "reason": reason,
            "hung": bool(hung) and outcome == "failed" and reason == hung,
            "nodes": list(status.nodes),
        }
    )
    write_record(attempt.record_path, ended)
    return ended


# --- attempts that were asked to stop -------------------------------------------------------------


def forget_stop_file(run: RunDir) -> bool:
    """Whoever starts the run again wants it to go on; returns whether there was such a file."""
    was_there = run.stop_path.exists()
    run.stop_path.unlink(missing_ok=True)
    return was_there


def stopped_by(run: RunDir, number: int) -> str:
    """What asked the attempt to stop: a signal's name, or STOP_FILE."""
    end = end_of(run.attempt(number))
    return end.stopped_by if end else ""


def idle_stops(run: RunDir) -> int:
    """How many of the last attempts in a row were asked to stop before they had made a step."""
    idle = takewhile(
        lambda attempt: (
            (record := attempt.record()) is not None
            and record.outcome == "stopped"
            and not made_steps(attempt)
        ),
        reversed(run.attempts()),
    )
    return len(list(idle))
