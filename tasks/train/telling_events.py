"""What the events of a run tell about its checkpoints: where training stands, and what has struck it.

A long training has a million events, and asks after each commit: each line is read once, and those of
the steps are not parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from configs.events import AnomalyEvent, CheckpointEvent, Event, StartEvent, event_adapter
from configs.rundir import AttemptDir, RunDir


@dataclass
class _Told:
    """What one attempt has told so far."""

    offset_bytes: int = 0
    position: int | None = None
    anomaly: AnomalyEvent | None = None

    def take(self, event: Event) -> None:
        match event:
            case StartEvent() | CheckpointEvent(outcome="committed"):
                self.position = event.step
            case AnomalyEvent(fatal=True) if not self.anomaly or event.time > self.anomaly.time:
                self.anomaly = event


class TellingEvents:
    """Of one run, as of when it is asked."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._told: dict[int, _Told] = {}
        """Of each attempt, in order."""

    def position(self) -> int | None:
        """The last step that the newest attempt has committed or was resumed from."""
        self._read()
        positions = (told.position for told in reversed(self._told.values()))
        return next((step for step in positions if step is not None), None)

    def last_onset(self) -> int | None:
        """First step that the run's last fatal anomaly has struck: a saved state can carry one."""
        self._read()
        anomalies = [told.anomaly for told in self._told.values() if told.anomaly is not None]
        return max(anomalies, key=lambda event: event.time).onset_step if anomalies else None

    def _read(self) -> None:
        for attempt in self._run.attempts():
            told = self._told.setdefault(attempt.number, _Told())
            for event in _new_events(attempt, told):
                told.take(event)


def _new_events(attempt: AttemptDir, told: _Told) -> Iterator[Event]:
    if not attempt.events_path.exists():
        return
    with open(attempt.events_path, "rb") as lines:
        lines.seek(told.offset_bytes)
        for line in lines:
            if not line.endswith(b"\n"):
                return  # still being written
            told.offset_bytes += len(line)
            if b'"event": "step"' in line:
                continue
            try:
                yield event_adapter.validate_json(line)
            except ValueError:  # torn by a crash
                continue
