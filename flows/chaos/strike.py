"""Waits for the moment of a strike, finds what it is for, and strikes.

A commit takes milliseconds. So its aim is looked for before, the folder is looked at without
pause while the moment is near, and what the run held is read right before the signal.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from configs.events import StepEvent
from configs.rundir import CheckpointDir, RunDir
from flows.chaos.schedule import Moment, Strike, Timeline
from flows.chaos.site import Aim, Site
from infra.launch.slurm_record import SUBMISSION_NAME
from tasks.train.chaos import held_step, open_save

PAUSE_S = 0.02
_NEAR_PAUSE_S = 0.0003
_FIND_INTERVAL_S = 0.1
_NEAR_FIND_INTERVAL_S = 0.5


@dataclass(frozen=True)
class Struck:
    """A strike that was made."""

    strike: Strike
    time: float
    pid: int
    attempt: int
    step: int
    """Newest step that training had told of."""
    held_step: int
    """Newest step that a committed checkpoint, or a snapshot of all ranks, held right before."""
    save_step: int
    """For a save or commit: of which checkpoint. 0 for others."""
    is_hit: bool
    """For a save or commit: whether the checkpoint was still not committed right after the signal; for
    a submission: whether the flow did not know of a job yet."""


class Striker:
    """Makes the strikes of one trial, one after another."""

    def __init__(
        self, run: RunDir, strikes: tuple[Strike, ...], timeline: Timeline, *, ranks: int,
        interval_steps: int, site: Site,
    ) -> None:  # fmt: skip
        self._run = run
        self._site = site
        self._left = list(strikes)
        self._timeline = timeline
        self._ranks = ranks
        self._interval_steps = interval_steps
        self._progress = Progress(run)
        self._target: Aim | None = None
        self._sought_at = 0.0
        self._save_step = 0
        self.made: list[Struck] = []

    def poll(self, flow_pid: int) -> float:
        """Strike if it is time to; returns how long the caller may sleep."""
        if not self._left:
            return PAUSE_S
        strike = self._left[0]
        moment = strike.moment
        if moment.when in ("save", "commit"):
            return self._poll_save(strike, flow_pid)
        if moment.when == "submit":
            return self._poll_submission(strike, flow_pid)
        self._progress.read()
        since = self._since(moment)
        if since is not None and since >= 0:
            self._strike(strike, flow_pid)
        return PAUSE_S

    def _since(self, moment: Moment) -> float | None:
        """Seconds since the moment, below zero before it; None while that cannot be told."""
        if moment.when == "later":
            return time.time() - self.made[-1].time - moment.fraction * self._timeline.total_s
        step, after_s = self._timeline.place(moment.fraction)
        began = self._progress.time_of(step)
        return None if began is None else time.time() - began - after_s

    def _poll_save(self, strike: Strike, flow_pid: int) -> float:
        """Strike in the middle of a save or commit, of the wanted step or of the next one."""
        self._save_step = self._save_step or strike.moment.step
        checkpoint = self._run.checkpoint(self._save_step)
        is_last = self._save_step >= self._timeline.steps
        if self._progress.step < self._save_step - 1:
            self._progress.read()
            return PAUSE_S
        if stage_is_there(checkpoint, strike.moment, self._ranks, is_strict=not is_last):
            self._strike(strike, flow_pid)
        elif checkpoint.is_committed() and not is_last:
            self._save_step += self._interval_steps
        elif self._target is None:
            self._find(strike, flow_pid)
        return _NEAR_PAUSE_S

    def _poll_submission(self, strike: Strike, flow_pid: int) -> float:
        """Strike while the first job is submitted: its mark is there, its record maybe not yet."""
        attempt = self._run.attempt(1)
        if (attempt.job_dir / SUBMISSION_NAME).exists():
            self._strike(strike, flow_pid)
        elif self._target is None:
            self._find(strike, flow_pid)
        return _NEAR_PAUSE_S

    def _strike(self, strike: Strike, flow_pid: int) -> None:
        """Strike, once its aim is there."""
        if self._target is None or not self._target.is_there():
            self._find(strike, flow_pid)
        if self._target is None:
            return
        held = held_step(self._run, self._ranks)
        if not self._target.strike():
            self._target = None
            return
        struck_at = time.time()
        save_step = self._save_step if strike.moment.when in ("save", "commit") else 0
        is_hit = save_step > 0 and not self._run.checkpoint(save_step).is_committed()
        if strike.moment.when == "submit":
            is_hit = self._run.attempt(1).record() is None
        self._progress.read()
        self.made.append(
            Struck(
                strike=strike,
                time=struck_at,
                pid=self._target.pid,
                attempt=self._progress.attempt,
                step=self._progress.step,
                held_step=held,
                save_step=save_step,
                is_hit=is_hit,
            )
        )
        self._left.pop(0)
        self._target, self._sought_at = None, 0.0

    def _find(self, strike: Strike, flow_pid: int) -> None:
        """Look for the aim, not too often: it takes a scan of all processes."""
        now = time.monotonic()
        is_near = strike.moment.when in ("save", "commit", "submit")
        pause_s = _NEAR_FIND_INTERVAL_S if is_near else _FIND_INTERVAL_S
        if now - self._sought_at >= pause_s:
            self._sought_at = now
            self._target = self._site.aim(self._run, strike, flow_pid)


class Progress:
    """How far training has come, out of the events of the newest attempt."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._offset_bytes = 0
        self._times: dict[int, float] = {}
        self.attempt = 0

    def read(self) -> None:
        """Take in what is new."""
        attempts = self._run.attempts()
        if not attempts:
            return
        newest = attempts[-1]
        if newest.number != self.attempt:
            self.attempt, self._offset_bytes = newest.number, 0
        if 0 not in self._times and (record := newest.record()) is not None:
            self._times[0] = record.submitted_at
        events, self._offset_bytes = newest.events_from(self._offset_bytes)
        for event in events:
            if isinstance(event, StepEvent):
                self._times.setdefault(event.step, event.time)

    @property
    def step(self) -> int:
        """Newest step that was ever made."""
        return max(self._times, default=0)

    def time_of(self, step: int) -> float | None:
        """When the step was first made (0: the first job started); None before that."""
        return self._times.get(step)


def stage_is_there(
    checkpoint: CheckpointDir, moment: Moment, ranks: int, *, is_strict: bool
) -> bool:
    """Whether the checkpoint's save or commit has come to the moment, and is not past it.

    Not strictly, any time before the commit will do.
    """
    save = open_save(checkpoint, ranks)
    if save is None or not is_strict:
        return save is not None
    if moment.when == "save":
        return 0 < save.parts < ranks if moment.stage == "parts" else save.parts == 0
    return save.has_index if moment.stage == "index" else save.parts == ranks and not save.has_index
