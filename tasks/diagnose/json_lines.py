"""Errors in structured logs: one JSON object a line, or a traceback that a logger put into one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tasks.diagnose.exceptions import TRACEBACK_HEADER
from tasks.diagnose.logs import MAX_RANKS, LogLine, split_prefix, without_controls

_HEADER = f"{TRACEBACK_HEADER}:"
_ESCAPED_TRACEBACK = f"{_HEADER}\\n"
_LEVEL_KEYS = ("level", "levelname", "severity", "lvl", "log.level", "log_level", "loglevel", "sev")
_ERROR_LEVELS = ("error", "fatal", "critical", "panic", "err", "crit")
_TYPE_KEYS = ("exc_type", "exception_type", "error_type", "exception.type", "error.type")
_TEXT_KEYS = ("exc", "exception", "exc_value", "exception.message", "error", "err", "error.message")
_MESSAGE_KEYS = ("msg", "message", "event", "m", "text", "body", "log", "short_message", "@message")
_ERROR_NUMBER = 50
"""Of levels that are numbers, as pino and Python's logging have them."""
_OUTPUT_KEYS = ("line", "log", "stderr", "stdout", "output", "raw")
"""Where collectors put what a program has printed."""
_OUTPUTS = tuple(f'"{key}":' for key in _OUTPUT_KEYS)
_RANK_KEYS = ("rank", "global_rank")


def parts_of(line: LogLine) -> list[LogLine]:
    """A logger's line as a program without structured logs would have written it: an error's record as
    its words, a traceback that was put into one line as many."""
    if line.body.startswith("{") and (record := _telling_record(line.body)) is not None:
        return _parts_of_record(line, record)
    if _ESCAPED_TRACEBACK in line.body:
        return [
            _part(line, part.replace('\\"', '"').rstrip('"}')) for part in line.body.split("\\n")
        ]
    return [line]


def _telling_record(body: str) -> dict[str, Any] | None:
    """The record, if it is an error's or holds what a program has printed."""
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):  # no JSON, or nested as no logger nests it
        return None
    if not isinstance(record, dict):
        return None
    return record if _is_error(record) or _printed(body, record) else None


def _printed(body: str, record: dict[str, Any]) -> str:
    return _first(record, _OUTPUT_KEYS) if any(key in body for key in _OUTPUTS) else ""


def _parts_of_record(line: LogLine, record: dict[str, Any]) -> list[LogLine]:
    rank = next((record[key] for key in _RANK_KEYS if _is_rank(record.get(key))), None)
    line = replace(line, rank=rank if line.rank is None else line.rank)
    traceback = next((v for v in record.values() if isinstance(v, str) and _HEADER in v), None)
    kind, text = _first(record, _TYPE_KEYS), _first(record, _TEXT_KEYS)
    if traceback is not None:
        parts = traceback[traceback.index(_HEADER) :].rstrip().split("\n")
        if parts[-1][:1].isspace() and kind:
            parts.append(f"{kind}: {text}")
        return [_part(line, part) for part in parts]
    if not (kind or text) and (printed := _printed(line.body, record).rstrip()):
        own, body = split_prefix(without_controls(printed))
        return [replace(line, rank=line.rank if own is None else own, body=body)]
    message = _first(record, _MESSAGE_KEYS)
    said = f"{kind}: {text or message}" if kind else f"ERROR {message}: {text}".rstrip(": ")
    return [replace(line, body=without_controls(said))]


def _is_rank(value: Any) -> bool:
    """-1 stands for a process that has not joined yet."""
    return type(value) is int and 0 <= value < MAX_RANKS


def _part(line: LogLine, text: str) -> LogLine:
    text = without_controls(text)
    return replace(line, text=text, body=text)


def _is_error(record: dict[str, Any]) -> bool:
    number = record.get("level")
    if type(number) is int and number >= _ERROR_NUMBER and number % 10 == 0:
        return True
    return _first(record, _LEVEL_KEYS).lower() in _ERROR_LEVELS


def _first(record: dict[str, Any], keys: tuple[str, ...]) -> str:
    found = (record[key] for key in keys if isinstance(record.get(key), str))
    return next(found, "")
