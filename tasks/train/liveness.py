"""When silence of a training job counts as a hang."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from configs.events import (
    CheckpointEvent,
    EndEvent,
    Event,
    FaultEvent,
    StartEvent,
    StepEvent,
    ValidationEvent,
)
from configs.schema import RunConfig

_WINDOW_STEPS = 128
_LEAST_STEPS = 8
"""Intervals to have seen before a limit is learnt from them."""
_QUANTILE = 0.95


@dataclass
class Liveness:
    """Watches one attempt's events, as one watcher hears of them.

    Silence is measured by the watcher's own clock, a monotonic one: the job's node may have another
    time, and a machine that sleeps has not been silent. A watcher that takes over begins anew, but
    learns the run's pace from the events that are there: steps are compared by the times in them.

    Before the first step the start-up limit holds (imports, loading, first compilation). After it,
    `hang_factor` times the run's own time from step to step, between `min_hang_timeout_s` and
    `hang_timeout_s`. Where the next event may rightly take longer than steps do, the full limit holds:
    while a validation is due, and at the last step or when the ranks say that they wait for their save;
    then the time that the job itself gives a save is added. It does give up by itself, and a job that
    is killed just before that has lost what it trained.
    """

    config: RunConfig
    last_sign_of_life: float
    """When watching began, then when the newest sign of life was heard of."""
    stepped: bool = False
    validation_is_due: bool = False
    save_is_awaited: bool = False
    _intervals: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW_STEPS))
    _last_step_at: float | None = None
    """Time in the last event, when that was a step: nothing but steps between two is an interval."""

    def see(self, event: Event, now: float) -> None:
        """Take note of an event."""
        match event:
            case FaultEvent():
                return
            case CheckpointEvent() if event.is_background:
                return  # It comes out of the background, also while training hangs.
            case StepEvent():
                self._see_step(event)
            case StartEvent() | ValidationEvent():
                self.validation_is_due = False
                self._last_step_at = None
            case CheckpointEvent() | EndEvent():
                self.validation_is_due = self.save_is_awaited = False
                self._last_step_at = None
        self.last_sign_of_life = now

    def waits_for_nodes(self, now: float) -> None:
        """The job is queued, or suspended: its silence counts from when it runs."""
        self.last_sign_of_life = now

    def _see_step(self, event: StepEvent) -> None:
        train = self.config.train
        if self._last_step_at is not None and event.time >= self._last_step_at:
            self._intervals.append(event.time - self._last_step_at)
        self._last_step_at = event.time
        self.stepped = True
        is_last = event.step == train.steps
        self.validation_is_due = is_last or event.step % train.validation_interval_steps == 0
        self.save_is_awaited = is_last or self._waits_for_save(event.step)

    def _waits_for_save(self, step: int) -> bool:
        checkpoint = self.config.checkpoint
        return checkpoint.wait_for_commit and checkpoint.is_due_in_storage(step)

    @property
    def limit_s(self) -> float:
        """How long silence is accepted right now."""
        recovery, checkpoint = self.config.recovery, self.config.checkpoint
        if not self.stepped:
            return recovery.startup_timeout_s
        if self.save_is_awaited:
            # Those that are in the buffers come first.
            return recovery.hang_timeout_s + checkpoint.longest_save_s * (checkpoint.buffers + 1)
        if self.validation_is_due:
            return recovery.hang_timeout_s
        return self.learnt_limit_s

    @property
    def learnt_limit_s(self) -> float:
        """The limit between two steps, from the run's own pace once that is known."""
        recovery = self.config.recovery
        if len(self._intervals) < _LEAST_STEPS:
            return recovery.hang_timeout_s
        usual = sorted(self._intervals)[math.ceil(_QUANTILE * len(self._intervals)) - 1]
        learnt = max(recovery.min_hang_timeout_s, recovery.hang_factor * usual)
        return min(recovery.hang_timeout_s, learnt)

    def hung(self, now: float) -> bool:
        """Whether the job has been silent for too long."""
        return now - self.last_sign_of_life > self.limit_s
