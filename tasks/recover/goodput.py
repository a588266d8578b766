"""Where the wall time of a run's training went.

Reads attempts/N/{attempt.json,action.json,events.jsonl}; writes nothing.

The account is exact: an attempt's time from submission to end is cut at its events, each cut goes to
one part, and the parts add up to the whole. An event says how long its work took; what lies between
the work before it and the start of that work is start-up until the first step has begun, and `other`
from then on. Writing a checkpoint in the background takes no time of training's: its commit counts only
as long as training stood still for it, and is no sign that training lives.

A step that was computed more than once counts once, the last time. When an attempt starts from step S,
all earlier computations of later steps are void, also of those that it does not reach again.

Time between attempts counts as restart only while a flow was at work on it: diagnosing, until the
decision, and backing off, until the wait that it decided on was over. A leg that took MAX_ABSENCE_S
longer than it had to means that nobody was there (the flow was stopped, and continued later): it is
left out of the wall time altogether. So is all time after a decision to stop, and after an interruption.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

from configs.events import (
    CheckpointEvent,
    EndEvent,
    Event,
    SnapshotEvent,
    StartEvent,
    StepEvent,
    ValidationEvent,
)
from configs.records import Goodput
from configs.rundir import AttemptDir, RunDir

MAX_ABSENCE_S = 300.0


@dataclass
class _Account:
    """Seconds by part; steps apart, until it is known which of them count."""

    parts: dict[str, float] = field(default_factory=dict)
    counted: dict[int, float] = field(default_factory=dict)
    """Step -> seconds of the computation that counts, in order of steps."""

    def add(self, part: str, seconds: float) -> None:
        self.parts[part] = self.parts.get(part, 0.0) + seconds

    def go_back_to(self, step: int) -> None:
        """Void what was computed beyond a step."""
        while self.counted and next(reversed(self.counted)) > step:
            self.add("recomputed_s", self.counted.popitem()[1])


def compute_goodput(run: RunDir, *, now: float | None = None) -> Goodput:
    """Account for all attempts so far. `now` ends an attempt, or a wait, that still goes on;
    without it the last event ends it."""
    account = _Account()
    attempts = run.attempts()
    for attempt, following in zip_longest(attempts, attempts[1:]):
        end = _add_attempt(account, attempt, now if following is None else None)
        account.add("restart_s", _restart_s(attempt, end, following, now))
    parts = {**dict.fromkeys(_PARTS, 0.0), **account.parts}
    parts["productive_s"] = sum(account.counted.values())
    wall_s = sum(parts.values())
    return Goodput(
        wall_s=wall_s, goodput=parts["productive_s"] / wall_s if wall_s else 0.0, **parts
    )


_PARTS = (
    "recomputed_s",
    "checkpoint_s",
    "validation_s",
    "startup_s",
    "detection_s",
    "restart_s",
    "other_s",
)


def _add_attempt(account: _Account, attempt: AttemptDir, now: float | None) -> float:
    """Cut the time from the attempt's submission to its end at its events; returns the end."""
    record = attempt.record()
    if record is None:
        return 0.0
    events = sorted(attempt.events(), key=lambda event: event.time)
    last = max([record.submitted_at, *(event.time for event in events)])
    end = max(record.ended_at or now or last, last)
    cursor, between = _add_works(account, events, record.submitted_at)
    last_sign = max([cursor, *(event.time for event in _signs_of_life(events))])
    account.add(between, last_sign - cursor)
    account.add(_tail_part(record.outcome, events, between), end - last_sign)
    return end


def _add_works(account: _Account, events: list[Event], cursor: float) -> tuple[float, str]:
    """Add each event's work and what lies before it, from the time `cursor` on.

    Returns when the last work ended, and what the time after it is. An event without a duration cuts
    nothing: a commit in the background comes in the middle of a step.
    """
    between = "startup_s"
    for event in events:
        if isinstance(event, StartEvent):
            account.go_back_to(event.step)
        duration_s = _duration_s(event)
        if not duration_s and not isinstance(event, StepEvent):
            continue
        ended = max(cursor, event.time)
        start = min(max(cursor, event.time - duration_s), ended)
        account.add(between, start - cursor)
        cursor = ended
        if isinstance(event, StepEvent):
            account.go_back_to(event.step - 1)
            waited_s = min(event.snapshot_wait_s, ended - start)
            account.add("checkpoint_s", waited_s)
            account.counted[event.step] = ended - start - waited_s
            between = "other_s"
        elif isinstance(event, ValidationEvent):
            account.add("validation_s", ended - start)
        else:
            account.add("checkpoint_s", ended - start)
    return cursor, between


def _duration_s(event: Event) -> float:
    """How long training was at this event's work when the event was written."""
    if isinstance(event, StepEvent):
        return event.step_time_s
    if isinstance(event, ValidationEvent):
        return event.duration_s
    if isinstance(event, CheckpointEvent):
        return event.waited_s
    if isinstance(event, SnapshotEvent):
        return event.blocked_s
    return 0.0


def _signs_of_life(events: list[Event]) -> list[Event]:
    return [e for e in events if not (isinstance(e, CheckpointEvent) and e.is_background)]


def _tail_part(outcome: str | None, events: list[Event], between: str) -> str:
    """What the time after the last sign of life was."""
    signs = _signs_of_life(events)
    if outcome in ("failed", "cancelled") and signs and not isinstance(signs[-1], EndEvent):
        return "detection_s"
    return between


def _restart_s(
    attempt: AttemptDir, end: float, following: AttemptDir | None, now: float | None
) -> float:
    """Seconds between an attempt's end and the next in which a flow was at work on the restart."""
    record, action = attempt.record(), attempt.action()
    next_record = following.record() if following else None
    resumed_at = next_record.submitted_at if next_record else now
    if record is None or record.ended_at is None or resumed_at is None or resumed_at < end:
        return 0.0
    if action is None or action.stop:
        return 0.0
    decided_at = min(max(action.decided_at, end), resumed_at)
    legs = ((decided_at - end, 0.0), (resumed_at - decided_at, action.wait_s))
    return sum(leg_s for leg_s, due_s in legs if leg_s <= due_s + MAX_ABSENCE_S)
