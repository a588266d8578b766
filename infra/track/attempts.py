"""An attempt as an MLflow run: step metrics as they come; verdict, log and trace when it has ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from configs.events import Event, event_adapter
from configs.files import read_json_lines
from configs.records import AttemptRecord
from configs.rundir import AttemptDir
from infra.track import points, spans
from infra.track.cursor import AttemptCursor, attempt_signature
from infra.track.telling import RUN_STATUS, Telling

_EVENTS_PER_PUSH = 150
"""About 1000 metrics, MLflow's limit for one request."""
_LOG_TAIL_BYTES = 64 * 1024


def tell_attempt(telling: Telling, attempt: AttemptDir, *, events: bool) -> None:
    """Tell what is new; without `events`, metrics wait until the attempt's records change."""
    now = attempt_signature(attempt)
    told = telling.cursor.attempts.get(attempt.number)
    if told is None:
        record = attempt.record()
        if record is None:
            return
        told = _open_attempt(telling, attempt, record)
    if events or now != told.files:
        _tell_events(telling, attempt, told)
    if now != told.files:
        record = attempt.record()
        if record is not None:
            _tell_records(telling, attempt, record, told.run_id)
        told.files = now
        telling.save()


def _open_attempt(telling: Telling, attempt: AttemptDir, record: AttemptRecord) -> AttemptCursor:
    run_id = telling.open_run(
        f"attempts/{attempt.number:03d}",
        f"attempt {attempt.number:03d}",
        record.submitted_at,
        telling.parent,
        {"overland.kind": "attempt", "overland.attempt": str(attempt.number)},
    )
    told = AttemptCursor(run_id=run_id)
    telling.cursor.attempts[attempt.number] = told
    telling.save()
    return told


def _tell_events(telling: Telling, attempt: AttemptDir, told: AttemptCursor) -> None:
    for events, offset_bytes in _events_from(attempt.events_path, told.offset_bytes):
        computed = [point for event in events for point in points.points_of_event(event)]
        highest_step = dict(telling.cursor.highest_step)
        effective = points.effective_points(computed, highest_step)
        telling.push({told.run_id: computed, telling.parent: effective})
        told.offset_bytes = offset_bytes
        telling.cursor.highest_step = highest_step
        telling.save()


def _tell_records(
    telling: Telling, attempt: AttemptDir, record: AttemptRecord, run_id: str
) -> None:
    verdict, action = attempt.verdict(), attempt.action()
    telling.server.set_tags(run_id, points.attempt_tags(record, verdict, action))
    if record.outcome is None:
        return
    for path in (attempt.verdict_path, attempt.action_path):
        if path.is_file():
            telling.server.log_text(run_id, path.name, path.read_text(encoding="utf-8"))
    log = attempt.job_dir / "launcher.log"
    if log.is_file():
        telling.server.log_text(run_id, log.name, _tail(log))
    root = spans.attempt_span(record, attempt.events(), verdict, action)
    key = telling.key(f"attempts/{attempt.number:03d}")
    telling.server.log_trace(telling.experiment, key, root, run_id)
    end = record.ended_at or root.end
    telling.server.end_run(run_id, RUN_STATUS[record.outcome], end)


def _events_from(path: Path, offset_bytes: int) -> Iterator[tuple[list[Event], int]]:
    """(events, offset after them), some at a time; lines that are no event are passed over."""
    events: list[Event] = []
    end = offset_bytes
    for value, end in read_json_lines(path, offset_bytes):
        try:
            events.append(event_adapter.validate_python(value))
        except ValidationError:
            continue
        if len(events) == _EVENTS_PER_PUSH:
            yield events, end
            events = []
    if end > offset_bytes:
        yield events, end


def _tail(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace")
