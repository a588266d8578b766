"""Prefect tasks of the pretrain stage: begin an attempt (:mod:`tasks.train.task_begin`), and watch it to
its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.logging import get_run_logger

from configs.errors import LaunchError
from configs.events import CheckpointEvent
from configs.records import AttemptRecord
from configs.rundir import AttemptDir, RunDir, write_record
from configs.schema import RunConfig
from configs.stacks import RankStack
from infra.interrupt import held_off, raise_if_interrupted
from infra.launch import make_launcher
from infra.launch.base import JobHandle, JobState, JobStatus, Launcher
from infra.launch.news import JobNews, Say
from tasks.train.liveness import Liveness
from tasks.train.outcome import JobEnd, end_of, made_steps, outcome_of, saved_step
from tasks.train.removal import remove_unneeded_checkpoints
from tasks.train.stop import STOP_FILE
from tasks.train.storage import require_storage
from tasks.train.task_begin import begin_attempt, new_record

__all__ = [
    "STOP_FILE",
    "begin_attempt",
    "remove_unneeded_checkpoints",
    "require_storage",
    "saved_step",
]

POLL_INTERVAL_S = 0.5
STACKS_TIMEOUT_S = 30.0
HUNG_GRACE_S = 5.0
"""A job that hangs has nothing to save; its ranks may have a word to say about their end."""
CHECKPOINT_COMMITTED = "overland.checkpoint.committed"
"""Prefect event that deployments can be triggered by; its resource is the checkpoint's folder."""


@task(name="watch-attempt", cache_policy=NO_CACHE)
def watch_attempt(
    config: RunConfig,
    number: int,
    *,
    announce: bool,
    restarted: bool = False,
    say: Say | None = None,
    flow_started_at: float = 0.0,
) -> AttemptRecord:
    """Wait for the attempt's end, end it when it hangs, and write how it ended.

    `restarted`: a server has started the flow again, not a person. `say` tells whoever looks on what
    becomes of the job; one that was submitted before `flow_started_at` is picked up again.

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
    tell = _teller(say)
    news = JobNews(f"job {handle.job_id}", tell, was_there=handle.submitted_at < flow_started_at)
    see = news.see if config.launcher.kind == "slurm" else _ignore
    try:
        status = _watch(config, attempt, launcher, handle, announce, see)
    except KeyboardInterrupt:
        with held_off():
            _end_for_person(config, attempt, record, launcher, handle, tell)
        raise
    return _end(run, attempt, attempt.record() or record, status)


def _teller(say: Say | None) -> Say:
    """Tells the log, and whoever looks on."""
    logger = get_run_logger()

    def tell(text: str) -> None:
        logger.info("%s", text)
        if say is not None:
            say(text)

    return tell


def _ignore(status: JobStatus) -> None:
    """On one machine a job starts at once."""


def _watch(
    config: RunConfig,
    attempt: AttemptDir,
    launcher: Launcher,
    handle: JobHandle,
    announce: bool,
    see: Callable[[JobStatus], None],
) -> JobStatus:
    """Poll until the job has ended, by itself or because it hung."""
    liveness = Liveness(config, last_sign_of_life=time.monotonic())
    offset_bytes = 0
    while True:
        raise_if_interrupted()
        status = launcher.poll(handle)
        see(status)
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
    record = attempts[-1].record() or new_record(attempts[-1], handle)
    if record.outcome is None:
        _cancel(config, attempts[-1], record, launcher, handle, why=why)


def _end_for_person(
    config: RunConfig,
    attempt: AttemptDir,
    record: AttemptRecord,
    launcher: Launcher,
    handle: JobHandle,
    tell: Say,
) -> None:
    """End the job after a Ctrl-C, which leaves it time to save, and say so meanwhile."""
    grace_s = config.recovery.stop_grace_s
    tell(f"interrupted: job {handle.job_id} is told to end, and has up to {grace_s:g} s to save")
    try:
        _cancel(config, attempt, record, launcher, handle, why="interrupted from the keyboard")
    except LaunchError as error:
        tell(f"job {handle.job_id} may go on, as its end was not seen: {error}")
    else:
        tell(f"job {handle.job_id} has ended")


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
