"""Diagnoses that a person has confirmed or corrected: cases to learn from.

Two files of JSON lines in one folder: `given.jsonl` holds the diagnoses that were given, so that an
id is enough to confirm one; `confirmed.jsonl` the cases.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from configs.diagnose_schema import default_store
from configs.errors import InputError
from configs.files import append_json_line, read_json_lines, resolved
from tasks.diagnose.cases import CONFIRMED_NAME
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.redact import redact

_MAX_GIVEN_BYTES = 8 << 20


def cases_folder() -> Path:
    """Where cases are kept: $OVERLAND_CASES, else a folder of the user's data."""
    return resolved(default_store())


def remember(case_id: str, diagnosis: dict[str, Any]) -> None:
    """Note a diagnosis that was given. A folder that cannot be written only costs `--confirm`."""
    path = cases_folder() / "given.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _MAX_GIVEN_BYTES:
            path.replace(path.with_name("given_before.jsonl"))
        append_json_line(
            path, {"id": case_id, "time": time.time(), "diagnosis": redact_quotes(diagnosis)}
        )
    except OSError:
        return


def confirm(case_id: str, failure_class: str) -> dict[str, Any]:
    """Add the diagnosis to the confirmed cases under the class that a person says; returns the case.

    `case_id` is an id of a report, or the file that was diagnosed.
    """
    if failure_class not in CLASSES:
        raise InputError(f"{failure_class} is no failure class; there are: {', '.join(CLASSES)}")
    given = _find(case_id)
    if given is None:
        raise InputError(f"no diagnosis {case_id} was given here: diagnose its log first")
    case = {
        "id": given["id"],
        "class": failure_class,
        "diagnosed_as": given["diagnosis"]["class"],
        "confirmed_at": time.time(),
        "diagnosis": given["diagnosis"],
    }
    append_json_line(cases_folder() / CONFIRMED_NAME, case)
    return case


def _find(case_id: str) -> dict[str, Any] | None:
    """The newest diagnosis of that id or file."""
    found = None
    for name in ("given_before.jsonl", "given.jsonl"):
        path = cases_folder() / name
        if path.is_file():
            for given, _ in read_json_lines(path):
                if case_id in (given["id"], given["diagnosis"]["file"]):
                    found = given
    return found


def redact_quotes(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """The diagnosis without secrets in what it quotes of the log."""
    quotes = {
        "root_cause_text": redact(diagnosis["root_cause_text"]),
        "evidence": [redact(line) for line in diagnosis["evidence"]],
    }
    return {**diagnosis, **quotes}
