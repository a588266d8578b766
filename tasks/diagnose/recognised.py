"""A failure that a person has confirmed before: known again by its very lines, or by their words.

The same log is the same failure, whatever a rule says of it. Where rules know nothing, the same words
are enough: they are compared without what differs from run to run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from configs.files import read_json_lines
from configs.records import Verdict
from tasks.diagnose.cases import CONFIRMED_NAME
from tasks.diagnose.classes import CLASSES, is_class
from tasks.diagnose.compressed import Compressed
from tasks.diagnose.embed import normalise
from tasks.diagnose.verdicts import CAREFUL_ACTIONS

METHOD = "confirmed"
_WORDING_CONFIDENCE = 0.8
_TELLING = ("cause", "traceback")
_DIGEST_BYTES = 16
_EVIDENCE_BEFORE = 4


class Fingerprint(BaseModel):
    """What tells a log from others."""

    model_config = ConfigDict(frozen=True)

    exact: str
    """Of all lines that compression keeps, and how many there were."""
    wording: str | None
    """Of the words of those that speak of a failure; None when none does."""


def fingerprint_of(compressed: Compressed) -> Fingerprint:
    """The fingerprint of a job's logs; of empty ones, by their names."""
    names = [] if compressed.kept_lines else [source.name for source in compressed.sources]
    texts = [line.text for line in compressed.kept]
    told = (v.line.body for _, v in compressed.verbatim if v.why in _TELLING)
    words = dict.fromkeys(normalise(text) for text in dict.fromkeys(told))
    return Fingerprint(
        exact=_digest((str(compressed.lines), *names, *texts)),
        wording=_digest(words) if words else None,
    )


def as_confirmed(
    verdict: Verdict, found: Fingerprint, folder: Path, *, unsure: bool
) -> Verdict | None:
    """The verdict as a person has put it for this log; if rules are unsure, for one of the same words."""
    confirmed = list(_confirmed(folder / CONFIRMED_NAME))[::-1]
    for case, known in confirmed:
        if known.exact == found.exact:
            return _the_same(verdict, case)
    for case, known in confirmed:
        in_words = unsure and known.wording is not None and known.wording == found.wording
        if in_words and case["class"] != "NoFailure":
            return _worded_alike(verdict, case)
    return None


def _confirmed(path: Path) -> Iterable[tuple[dict[str, Any], Fingerprint]]:
    """Confirmed cases that hold a fingerprint. A file that cannot be read holds none."""
    try:
        entries = [entry for entry, _ in read_json_lines(path)]
    except OSError:
        return
    for entry in entries:
        known = entry.get("fingerprint")
        if isinstance(known, dict) and is_class(entry.get("class")):
            exact, wording = known.get("exact"), known.get("wording")
            if isinstance(exact, str) and isinstance(wording, str | None):
                yield entry, Fingerprint(exact=exact, wording=wording)


def _the_same(verdict: Verdict, case: dict[str, Any]) -> Verdict:
    if case["class"] == verdict.failure_class:
        update: dict[str, Any] = {"confidence": 1.0}
    else:
        update = _of_class(case["class"]) | {"confidence": 1.0, "method": METHOD}
        if case["class"] == "NoFailure":
            update |= {
                "root_cause_file": None,
                "root_cause_line": None,
                "root_cause_text": "",
                "faulty_rank": None,
                "faulty_node": None,
            }
    said = f"a person has confirmed this log as {case['class']} (case {case.get('id')})"
    return verdict.model_copy(update=update | _evidence(verdict, said))


def _worded_alike(verdict: Verdict, case: dict[str, Any]) -> Verdict:
    update = _of_class(case["class"]) | {"confidence": _WORDING_CONFIDENCE, "method": "past_case"}
    if update["action"] not in CAREFUL_ACTIONS:
        update["action"] = verdict.action
    said = f"worded as case {case.get('id')}, which a person has confirmed as {case['class']}"
    return verdict.model_copy(update=update | _evidence(verdict, said))


def _of_class(name: str) -> dict[str, Any]:
    known = CLASSES[name]
    return {
        "failure_class": known.name,
        "category": known.category,
        "action": known.action,
        "mitigation": known.mitigation,
    }


def _evidence(verdict: Verdict, said: str) -> dict[str, list[str]]:
    return {"evidence": [*verdict.evidence[:_EVIDENCE_BEFORE], said]}


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for text in texts:
        digest.update(text.encode(errors="replace") + b"\0")
    return digest.hexdigest()
