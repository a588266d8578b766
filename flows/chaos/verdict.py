"""What a trial of `overland chaos` has shown: whether it ended as the undisturbed run did, what was lost.

Pure: it reads events that are given to it. Floats are compared for equality, which is the point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from configs.events import Event, StartEvent, StepEvent, ValidationEvent
from flows.chaos.strike import Struck

_PROBLEMS_SHOWN = 5
_NEEDED = ("rank", "agent", "node", "job")


@dataclass(frozen=True)
class Outcome:
    """All that two runs must have in common, bit for bit."""

    steps: dict[int, tuple[float, float, float]]
    """Step -> loss, gradient norm, learning rate."""
    validations: dict[int, float]
    digest: str
    """Of the last checkpoint: weights, optimizer state, random state."""


@dataclass(frozen=True)
class Restart:
    """Training has begun again, in a new attempt."""

    attempt: int
    held_step: int
    """Newest step that was held at the last strike before it."""
    resumed_step: int
    loaded_from: str
    recomputed_steps: int
    """Steps that had been made, and that nothing held or that were lost."""
    restart_s: float | None
    """From the strike that ended the attempt before to the first step of this one (to its start, where
    no step was left to make); None when no strike came before."""

    @property
    def lost_steps(self) -> int:
        """Steps that a committed checkpoint or a live snapshot held, and that were made again."""
        return max(0, self.held_step - self.resumed_step)


def outcome_of(events: Iterable[Event], digest: str) -> Outcome:
    """The outcome of an undisturbed run."""
    steps, validations = {}, {}
    for event in events:
        if isinstance(event, StepEvent):
            steps[event.step] = _figures(event)
        elif isinstance(event, ValidationEvent):
            validations[event.step] = event.loss
    return Outcome(steps, validations, digest)


def differences(expected: Outcome, events: Iterable[Event], digest: str) -> list[str]:
    """What of a trial is not equal to the undisturbed run; empty when all of it is, in every attempt."""
    steps, validations = set(), set()
    found = []
    for event in events:
        if isinstance(event, StepEvent):
            steps.add(event.step)
            if (there := _figures(event)) != (wanted := expected.steps.get(event.step)):
                found.append(f"step {event.step}: {there} instead of {wanted}")
        elif isinstance(event, ValidationEvent):
            validations.add(event.step)
            if event.loss != (wanted_loss := expected.validations.get(event.step)):
                found.append(f"validation {event.step}: {event.loss} instead of {wanted_loss}")
    found = _shortened(found)
    for what, missing in (
        ("steps", expected.steps.keys() - steps),
        ("validations", expected.validations.keys() - validations),
    ):
        if missing:
            found.append(f"{what} {sorted(missing)} are missing")
    if digest != expected.digest:
        found.append(f"the last checkpoint is another: {digest} instead of {expected.digest}")
    return found


def restarts_of(attempts: Sequence[Sequence[Event]], struck: Sequence[Struck]) -> list[Restart]:
    """Each begin of an attempt after the first one that had begun, or after any strike."""
    found: list[Restart] = []
    newest_step, began = 0, 0.0
    for number, events in enumerate(attempts, start=1):
        start = next((e for e in events if isinstance(e, StartEvent)), None)
        steps = [e for e in events if isinstance(e, StepEvent)]
        if start is not None and number > 1:
            before = [s for s in struck if s.time < start.time]
            cause = _cause(before, began)
            first = steps[0].time if steps else start.time
            found.append(
                Restart(
                    attempt=number,
                    held_step=max((s.held_step for s in before), default=0),
                    resumed_step=start.step,
                    loaded_from=start.loaded_from,
                    recomputed_steps=max(0, newest_step - start.step),
                    restart_s=first - cause.time if cause else None,
                )
            )
        newest_step = max([newest_step, *(s.step for s in steps)])
        began = start.time if start is not None else began
    return found


def _cause(before: Sequence[Struck], began: float) -> Struck | None:
    """The strike that ended an attempt that had begun then: the first one at a process that it needs.

    Without writers, flows and Slurm's daemons, training goes on.
    """
    fatal = [s for s in before if s.time > began and s.strike.target in _NEEDED]
    return next(iter(fatal or before[-1:]), None)


def to_json(restart: Restart) -> dict[str, Any]:
    """A restart as a person reads it."""
    return {**vars(restart), "lost_steps": restart.lost_steps}


def _figures(event: StepEvent) -> tuple[float, float, float]:
    return event.loss, event.grad_norm, event.learning_rate


def _shortened(found: list[str]) -> list[str]:
    more = len(found) - _PROBLEMS_SHOWN
    return [*found[:_PROBLEMS_SHOWN], f"and {more} more"] if more > 0 else found
