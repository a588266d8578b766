"""Read files of a run directory again and again, cheaply.

A small JSON file is parsed only when it was replaced; an event file is read on from where the last
read ended; what can no longer change is not looked at again. A look at a run that is hours old thus
costs some `stat` calls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic

from pydantic import ValidationError

from configs.events import Event, StartEvent, StepEvent, event_adapter
from configs.files import read_json_lines
from configs.records import Action, AttemptRecord, EvaluationFailure, EvaluationScores, Verdict
from configs.regressions import EvaluationLeftOut, RegressionReport
from configs.run_folders import RecordType
from configs.rundir import AttemptDir, EvaluationDir, read_record

_Signature = tuple[int, int, int]


def _signature(path: Path) -> _Signature | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


class CachedRecord(Generic[RecordType]):
    """A record file, parsed again only after it was replaced."""

    def __init__(self, path: Path, record_type: type[RecordType]) -> None:
        self._path = path
        self._type = record_type
        self._seen: _Signature | None = None
        self._record: RecordType | None = None

    def read(self) -> RecordType | None:
        """The record as of now; None while there is none."""
        signature = _signature(self._path)
        if signature != self._seen:
            self._record = read_record(self._path, self._type)
            self._seen = signature
        return self._record


class EventTail:
    """Events of one attempt, each handed out once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_bytes = 0
        self._seen: _Signature | None = None

    def read(self) -> list[Event]:
        """Events that were appended since the last call; lines that are no event are left out."""
        signature = _signature(self._path)
        if signature is None or signature == self._seen:
            return []
        self._seen = signature
        events: list[Event] = []
        for value, offset_bytes in read_json_lines(self._path, self._offset_bytes):
            self._offset_bytes = offset_bytes
            try:
                events.append(event_adapter.validate_python(value))
            except ValidationError:
                continue
        return events


@dataclass(frozen=True)
class AttemptView:
    """One attempt as of now."""

    number: int
    record: AttemptRecord | None = None
    verdict: Verdict | None = None
    action: Action | None = None
    start: StartEvent | None = None
    last_step: int | None = None
    """Last step that this attempt finished."""
    stopping: bool = False
    """Somebody has asked its job to end."""

    @property
    def failed(self) -> bool:
        return self.record is not None and self.record.outcome == "failed"

    @property
    def cancelled(self) -> bool:
        return self.record is not None and self.record.outcome == "cancelled"

    @property
    def stopped(self) -> bool:
        """It was asked to stop, and has saved."""
        return self.record is not None and self.record.outcome == "stopped"

    @property
    def ended(self) -> bool:
        return self.record is not None and self.record.outcome is not None


class AttemptReader:
    """Follows one attempt's folder."""

    def __init__(self, attempt: AttemptDir) -> None:
        self._record = CachedRecord(attempt.record_path, AttemptRecord)
        self._verdict = CachedRecord(attempt.verdict_path, Verdict)
        self._action = CachedRecord(attempt.action_path, Action)
        self._cancel_path = attempt.job_dir / "cancel.json"
        self._tail = EventTail(attempt.events_path)
        self._start: StartEvent | None = None
        self._last_step: int | None = None
        self._settled = False
        self.view = AttemptView(attempt.number)

    def read(self, *, superseded: bool) -> list[Event]:
        """Update `view`; returns new events. `superseded`: a later attempt exists."""
        if self._settled:
            return []
        record, verdict, action = self._record.read(), self._verdict.read(), self._action.read()
        events = self._tail.read()
        for event in events:
            if isinstance(event, StartEvent):
                self._start = event
            elif isinstance(event, StepEvent):
                self._last_step = event.step
        self.view = AttemptView(
            self.view.number,
            record,
            verdict,
            action,
            self._start,
            self._last_step,
            stopping=self._cancel_path.exists(),
        )
        self._settled = superseded and self.view.ended
        return events


@dataclass(frozen=True)
class EvaluationView:
    """One checkpoint's evaluation as of now."""

    step: int
    stage: str
    """export, infer or score: what it does, or did last."""
    scores: EvaluationScores | None = None
    failure: EvaluationFailure | None = None
    left_out: EvaluationLeftOut | None = None
    regressions: RegressionReport | None = None
    """How the scores compare with those before."""

    @property
    def ended(self) -> bool:
        """It has come to its end, or will not be begun."""
        return bool(self.scores or self.failure or self.left_out)


class EvaluationReader:
    """Follows one evaluation's folder."""

    def __init__(self, evaluation: EvaluationDir) -> None:
        self._folder = evaluation
        self._failure = CachedRecord(evaluation.failure_path, EvaluationFailure)
        self._left_out = CachedRecord(evaluation.left_out_path, EvaluationLeftOut)
        self._regressions = CachedRecord(evaluation.regressions_path, RegressionReport)
        self.view = EvaluationView(evaluation.step, "export")

    def read(self) -> EvaluationView:
        """The evaluation as of now. Scores are final; a failure may be tried again."""
        if self.view.scores is None:
            scores = self._folder.scores()
            failure = None if scores else self._failure.read()
            left_out = None if scores or failure else self._left_out.read()
            self.view = EvaluationView(self.view.step, self._stage(), scores, failure, left_out)
        if self.view.scores is not None:
            self.view = replace(self.view, regressions=self._regressions_of(self.view.scores))
        return self.view

    def _regressions_of(self, scores: EvaluationScores) -> RegressionReport | None:
        """The comparison, unless it is of an earlier checkpoint of this step."""
        report = self._regressions.read()
        return report if report and report.checkpoint == scores.checkpoint else None

    def _stage(self) -> str:
        """The last stage that has begun; scoring runs beside inference, and then alone."""
        if self._folder.inferred_path.is_file():
            return "score"
        jobs = self._folder.job_dir("any").parent  # a stage's tries are folders like infer-1
        return "infer" if any(jobs.glob("infer-*")) else "export"
