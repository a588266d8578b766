"""Diagnoses that a person has confirmed or corrected: cases to learn from.

Two files of JSON lines in one folder: `given.jsonl` holds the diagnoses that were given, so that an
id is enough to confirm one; `confirmed.jsonl` the cases.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from configs.diagnose_schema import default_store
from configs.errors import InputError
from configs.files import append_json_line, read_json_lines, resolved
from tasks.diagnose.cases import CONFIRMED_NAME
from tasks.diagnose.classes import CLASSES, is_class
from tasks.diagnose.redact import redact
from tasks.diagnose.sources import STDIN

_GIVEN_NAME = "given.jsonl"
_GIVEN_BEFORE_NAME = "given_before.jsonl"
_MAX_GIVEN_BYTES = 8 << 20


def cases_folder() -> Path:
    """Where cases are kept: $OVERLAND_CASES, else a folder of the user's data."""
    return resolved(default_store())


def remember(
    case_id: str,
    diagnosis: dict[str, Any],
    *,
    folder: Path | None = None,
    names: Sequence[str] = (),
    fingerprint: dict[str, Any] | None = None,
) -> bool:
    """Note a diagnosis that was given; whether it could be. A folder that cannot be written only costs
    `--confirm`.

    `names`: what was diagnosed, in place of the file that the root cause's line stands in.
    """
    path = (folder or cases_folder()) / _GIVEN_NAME
    paths = {str(Path(name).resolve()) for name in (diagnosis["file"], *names) if name != STDIN}
    given = {
        "id": case_id,
        "time": time.time(),
        "names": sorted(paths),
        "fingerprint": fingerprint,
        "diagnosis": redact_quotes(diagnosis),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _MAX_GIVEN_BYTES:
            path.replace(path.with_name(_GIVEN_BEFORE_NAME))
        append_json_line(path, given)
    except OSError:
        return False
    return True


def confirm(case_id: str, failure_class: str, folder: Path | None = None) -> dict[str, Any]:
    """Add the diagnosis to the confirmed cases under the class that a person says; returns the case.

    `case_id` is an id of a report, or the file or directory that was diagnosed.
    """
    folder = folder or cases_folder()
    name = _class_named(failure_class)
    given = _find(case_id, folder)
    if given is None:
        raise InputError(
            f"no diagnosis {case_id} is noted in {folder}: diagnose its log first, with the same store"
        )
    if given["diagnosis"].get("kept_lines") == 0:
        raise InputError(f"{case_id} holds no line: there is nothing to know it by another time")
    case = {
        "id": given["id"],
        "class": name,
        "diagnosed_as": given["diagnosis"]["class"],
        "confirmed_at": time.time(),
        "fingerprint": given.get("fingerprint"),
        "diagnosis": given["diagnosis"],
    }
    try:
        append_json_line(folder / CONFIRMED_NAME, case)
    except OSError as error:
        raise InputError(
            f"{folder / CONFIRMED_NAME} cannot be written: {error.strerror}"
        ) from error
    return case


def _class_named(text: str) -> str:
    """The class, in whatever case it is written."""
    names = {name.lower(): name for name in CLASSES if name != "Unknown"}
    if text.lower() in names:
        return names[text.lower()]
    close = [names[name] for name in get_close_matches(text.lower(), names, n=3)]
    there_are = (
        f"do you mean {' or '.join(close)}?" if close else f"there are: {', '.join(CLASSES)}"
    )
    if text.lower() == "unknown":
        there_are = "confirm what it was, or leave it"
    raise InputError(f"{text} is no failure class to confirm: {there_are}")


def _find(case_id: str, folder: Path) -> dict[str, Any] | None:
    """The newest diagnosis of that id, file or directory."""
    path, found = str(Path(case_id).resolve()), None
    for name in (_GIVEN_BEFORE_NAME, _GIVEN_NAME):
        if (folder / name).is_file():
            for given, _ in read_json_lines(folder / name):
                if _is_whole(given) and {case_id, path} & _names_of(given):
                    found = given
    return found


def _is_whole(given: dict[str, Any]) -> bool:
    """Whether it is as :func:`remember` writes it: somebody may have edited the file."""
    diagnosis, names = given.get("diagnosis"), given.get("names", [])
    return (
        isinstance(given.get("id"), str)
        and isinstance(diagnosis, dict)
        and isinstance(diagnosis.get("file"), str)
        and is_class(diagnosis.get("class"))
        and isinstance(names, list)
    )


def _names_of(given: dict[str, Any]) -> set[str]:
    return {given["id"], given["diagnosis"]["file"], *map(str, given.get("names", ()))}


def redact_quotes(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """The diagnosis without secrets in what it quotes of the log."""
    quotes = {
        "root_cause_text": redact(diagnosis["root_cause_text"]),
        "evidence": [redact(line) for line in diagnosis["evidence"]],
    }
    return {**diagnosis, **quotes}
