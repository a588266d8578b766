"""What `overland chaos --failures` prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flows.show.failures import print_failures


def trial(**changes: Any) -> dict[str, Any]:
    return {
        "name": "hang", "how": "caused", "class": "Hang", "found_class": "Hang",
        "action": "restart_same_nodes", "found_action": "restart_same_nodes", "restarts": 1,
        "finished": True, "problems": [], **changes,
    }  # fmt: skip


def report(*details: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "trials": len(details), "failure_classes": 1, "right_verdicts": 1, "right_actions": 1,
        "wrong_restarts": 0, "need_nobody": 1, "went_on_alone": 1, "unattended_share": 1.0,
        "failed": [], "folder": None, "details": list(details), **changes,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")


def test_a_trial_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_failures(report(trial()), json=False)
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if "hang" in line)
    for text in ("caused", "Hang", "restart_same_nodes", "1 restart, finished", "right"):
        assert text in row
    assert "1 trial of 1 failure class: 1 right verdicts, 1 right actions" in shown
    assert "1 of 1 that need nobody went on and finished alone (100%); 0 wrong restarts" in shown


def test_what_is_wrong_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = trial(found_class=None, found_action="none", problems=["not done within 420 s"])
    shown_as = {"failed": ["hang"], "folder": "/trials", "unattended_share": None}
    print_failures(report(wrong, **shown_as), json=False)
    shown = capsys.readouterr().out
    for text in ("none (not Hang)", "none (not restart_same_nodes)", "not done within 420 s"):
        assert text in shown
    assert "failed: hang, kept in /trials" in shown
    assert "need nobody" not in shown


def test_json_is_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(trial())
    print_failures(found, json=True)
    assert json.loads(capsys.readouterr().out) == found
