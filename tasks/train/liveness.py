"""When silence of a training job counts as a hang."""

from __future__ import annotations

from dataclasses import dataclass

from configs.events import CheckpointEvent, Event, StartEvent, StepEvent
from configs.schema import RunConfig


@dataclass
class Liveness:
    """Watches one attempt's events, as one watcher hears of them.

    Silence is measured by the watcher's own clock, a monotonic one: the job's node may have another
    time, and a machine that sleeps has not been silent. A watcher that takes over begins anew.

    Before the first step the start-up limit holds (imports, loading, first compilation). After it,
    the hang limit; while a save is due, the save's own limit is added, since no step can end then.
    """

    config: RunConfig
    last_sign_of_life: float
    """When watching began, then when the newest event was heard of."""
    stepped: bool = False
    save_is_due: bool = False

    def see(self, event: Event, now: float) -> None:
        """Take note of an event."""
        self.last_sign_of_life = now
        if isinstance(event, StepEvent):
            self.stepped = True
            at_interval = event.step % self.config.checkpoint.interval_steps == 0
            self.save_is_due = at_interval or event.step == self.config.train.steps
        elif isinstance(event, CheckpointEvent | StartEvent):
            self.save_is_due = False

    @property
    def limit_s(self) -> float:
        """How long silence is accepted right now."""
        if not self.stepped:
            return self.config.recovery.startup_timeout_s
        limit_s = self.config.recovery.hang_timeout_s
        return limit_s + self.config.checkpoint.save_timeout_s if self.save_is_due else limit_s

    def hung(self, now: float) -> bool:
        """Whether the job has been silent for too long."""
        return now - self.last_sign_of_life > self.limit_s
