"""The steps of a run that count, out of the events of all its attempts."""

from __future__ import annotations

import math
import statistics
from array import array
from collections import deque
from dataclasses import dataclass, replace

from configs.events import (
    AnomalyEvent,
    CheckpointEvent,
    Event,
    FaultEvent,
    SnapshotEvent,
    StartEvent,
    StepEvent,
    ValidationEvent,
)

_RECENT_STEPS = 50


@dataclass(frozen=True)
class SnapshotCounts:
    """Copies of the training state in memory."""

    begun: int = 0
    skipped: int = 0
    """No buffer was free."""
    last_step: int | None = None
    """Step of the newest one that was begun and that counts."""
    last_attempt: int = 0
    """The attempt that began it."""


@dataclass(frozen=True)
class LostSnapshot:
    """A snapshot in memory that is newer than what an attempt has started from."""

    time: float
    attempt: int
    """The attempt that went without it."""
    made_by: int
    step: int


class Trajectory:
    """The steps that count, out of all attempts' events in order."""

    def __init__(self) -> None:
        self.step = 0
        self.validation: ValidationEvent | None = None
        self.last_event_at: float | None = None
        self.failed_saves: list[CheckpointEvent] = []
        self.faults: list[tuple[int, FaultEvent]] = []
        self.anomalies: list[tuple[int, AnomalyEvent]] = []
        self.snapshots = SnapshotCounts()
        self.lost_snapshots: list[LostSnapshot] = []
        self._losses = array("d", [math.nan])
        self._recent: deque[StepEvent] = deque(maxlen=_RECENT_STEPS)
        self._steps_computed = 0
        self._held_up_s = 0.0

    def add(self, attempt: int, event: Event) -> None:
        """Take in the next event of an attempt."""
        if not (isinstance(event, CheckpointEvent) and event.is_background):
            self.last_event_at = event.time  # A commit in the background is no sign of life.
        if isinstance(event, StepEvent):
            self._add_step(event)
        elif isinstance(event, StartEvent):
            self._note_lost(attempt, event)
            self._go_back(event.step)
        elif isinstance(event, ValidationEvent):
            self.validation = event
            self._held_up_s += event.duration_s
        elif isinstance(event, CheckpointEvent):
            self._held_up_s += event.waited_s
            if event.outcome == "failed":
                self.failed_saves.append(event)
        elif isinstance(event, SnapshotEvent):
            self._held_up_s += event.blocked_s
            self._count(attempt, event)
        elif isinstance(event, AnomalyEvent):
            self.anomalies.append((attempt, event))
        elif isinstance(event, FaultEvent):
            self.faults.append((attempt, event))

    def _add_step(self, event: StepEvent) -> None:
        missing = event.step + 1 - len(self._losses)
        if missing > 0:
            self._losses.extend([math.nan] * missing)
        self._losses[event.step] = event.loss
        self.step = event.step
        self._recent.append(event)
        self._steps_computed += 1

    def _count(self, attempt: int, event: SnapshotEvent) -> None:
        counts = self.snapshots
        if event.outcome == "skipped":
            self.snapshots = replace(counts, skipped=counts.skipped + 1)
        else:
            self.snapshots = replace(
                counts, begun=counts.begun + 1, last_step=event.step, last_attempt=attempt
            )

    def _note_lost(self, attempt: int, start: StartEvent) -> None:
        newest = self.snapshots
        if newest.last_step is not None and newest.last_step > start.step:
            lost = LostSnapshot(start.time, attempt, newest.last_attempt, newest.last_step)
            self.lost_snapshots.append(lost)

    def _go_back(self, step: int) -> None:
        self.step = step
        if (self.snapshots.last_step or 0) > step:
            self.snapshots = replace(self.snapshots, last_step=None)
        if self.validation and self.validation.step > step:
            self.validation = None

    @property
    def loss(self) -> float | None:
        """Loss of the last step that counts, whichever attempt computed it."""
        if not 0 < self.step < len(self._losses):
            return None
        return self._losses[self.step]

    @property
    def tokens_per_s(self) -> float | None:
        """Median of recent steps."""
        return statistics.median(e.tokens_per_s for e in self._recent) if self._recent else None

    @property
    def step_time_s(self) -> float | None:
        """Median of recent steps."""
        return statistics.median(e.step_time_s for e in self._recent) if self._recent else None

    def time_left_s(self, total_steps: int | None) -> float | None:
        """Steps to go times the recent step time and what saves and validations add to a step."""
        if total_steps is None or self.step_time_s is None:
            return None
        held_up_s = self._held_up_s / self._steps_computed
        return max(total_steps - self.step, 0) * (self.step_time_s + held_up_s)
