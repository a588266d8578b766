"""What `overland chaos` prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flows.show.chaos import print_chaos


def restart(**changes: Any) -> dict[str, Any]:
    return {
        "held_step": 15, "resumed_step": 15, "loaded_from": "memory", "lost_steps": 0,
        "restart_s": 5.25, **changes,
    }  # fmt: skip


def report(*, details: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "trials": len(details), "identical": 1, "lost_steps": 0, "restart_s": 5.25, "failed": [],
        "restarts": 1, "folder": None, "details": details, **changes,
    }  # fmt: skip


def trial(number: int, **changes: Any) -> dict[str, Any]:
    found = {
        "number": number, "planned": ["SIGKILL to rank 1 in the save of step 15 (parts)"],
        "strikes": [{}], "restarts": [restart()], "problems": [], "leftovers": [],
    }  # fmt: skip
    return {**found, **changes}


def test_a_trial_is_a_row(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    print_chaos(report(details=[trial(1)]), json=False)
    shown = capsys.readouterr().out
    assert "SIGKILL to rank 1 in the save of step 15 (parts)" in shown
    assert "15 (memory)" in shown and "5.2 s" in shown and "identical" in shown
    assert "1 of 1 trial identical to the undisturbed run bit for bit; 0 steps lost" in shown
    assert "1 restart, median 5.2 s" in shown


def test_what_failed_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    details = [
        trial(1, problems=["step 20: another loss"]),
        trial(2, leftovers=["process 7"], restarts=[restart(restart_s=None)]),
        trial(3, strikes=[], restarts=[]),
    ]
    folder = {"failed": [1, 2, 3], "folder": "/trials", "restart_s": None}
    print_chaos(report(details=details, **folder), json=False)
    shown = capsys.readouterr().out
    for text in ("step 20: another loss", "left behind: process 7", "never struck"):
        assert text in shown
    assert "failed: [1, 2, 3], kept in /trials" in shown


def test_json_is_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(details=[trial(1)])
    print_chaos(found, json=True)
    assert json.loads(capsys.readouterr().out) == found
