"""A log that a person has confirmed: it is that class from then on, and so is one in the same words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configs.records import Verdict
from tasks.diagnose.compress import compress
from tasks.diagnose.recognised import Fingerprint, as_confirmed, fingerprint_of
from tasks.diagnose.sources import source_of
from tasks.diagnose.verdicts import make_verdict

UNKNOWN = make_verdict("Unknown", method="none", confidence=0.1)
SURE = make_verdict("KeyError", method="exception", confidence=0.8)
LOG = (
    "[{hour:02d}:00:07] started\n[{hour:02d}:01:07] FATAL conduit {n} lost its seal on worker {n}\n"
)


def print_of(tmp_path: Path, *, hour: int, n: int) -> Fingerprint:
    log = tmp_path / "job.log"
    log.write_text(LOG.format(hour=hour, n=n))
    return fingerprint_of(compress([source_of(log)]))


def confirmed_as(tmp_path: Path, failure_class: str) -> None:
    found = print_of(tmp_path, hour=1, n=7).model_dump()
    case = {"id": "c1", "class": failure_class, "fingerprint": found}
    (tmp_path / "confirmed.jsonl").write_text(json.dumps(case) + "\n")


def again(tmp_path: Path, verdict: Verdict, *, unsure: bool, hour: int, n: int) -> Verdict | None:
    found = print_of(tmp_path, hour=hour, n=n)
    return as_confirmed(verdict, found, tmp_path, unsure=unsure)


def test_the_same_log_is_what_a_person_has_said_whatever_rules_say(tmp_path: Path) -> None:
    confirmed_as(tmp_path, "NodeFailure")
    found = again(tmp_path, SURE, unsure=False, hour=1, n=7)
    assert found is not None
    assert (found.failure_class, found.confidence) == ("NodeFailure", 1.0)
    assert again(tmp_path, SURE, unsure=False, hour=2, n=8) is None


def test_the_same_words_are_enough_where_rules_know_nothing(tmp_path: Path) -> None:
    confirmed_as(tmp_path, "NodeFailure")
    found = again(tmp_path, UNKNOWN, unsure=True, hour=2, n=8)
    assert found is not None
    assert (found.failure_class, found.confidence) == ("NodeFailure", 0.8)
    assert found.action == UNKNOWN.action, "words alone exclude no node"


def test_the_same_words_call_no_job_well(tmp_path: Path) -> None:
    confirmed_as(tmp_path, "NoFailure")
    assert again(tmp_path, UNKNOWN, unsure=True, hour=2, n=8) is None
    found = again(tmp_path, UNKNOWN, unsure=True, hour=1, n=7)
    assert found is not None and found.failure_class == "NoFailure"


@pytest.mark.parametrize("fingerprint", [None, 3, {"exact": 3, "wording": None}, {}])
def test_a_case_without_a_fingerprint_is_no_match(tmp_path: Path, fingerprint: object) -> None:
    case = {"id": "c1", "class": "Hang", "fingerprint": fingerprint}
    listed = {"id": "c2", "class": ["Hang"], "fingerprint": {"exact": "a", "wording": None}}
    (tmp_path / "confirmed.jsonl").write_text(f"{json.dumps(case)}\n{json.dumps(listed)}\n")
    assert again(tmp_path, UNKNOWN, unsure=True, hour=1, n=7) is None
