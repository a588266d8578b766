"""Real runs that fail in every way: the right verdict, the right action, and nobody has to help."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.chaos.failures import run_failures
from tests.flows.helpers import overland

pytestmark = pytest.mark.slow


@pytest.mark.soak
def test_one_failure_needs_a_person_and_the_other_nobody(tmp_path: Path) -> None:
    said: list[str] = []
    report = run_failures(
        classes=["tokens-cut", "segfault"], folder=tmp_path / "trials", say=said.append
    )
    explained = "\n".join(said)
    assert report["failed"] == [], explained
    assert (report["right_verdicts"], report["right_actions"]) == (2, 2), explained
    assert (report["unattended_share"], report["wrong_restarts"]) == (1.0, 0), explained
    mistake, crash = report["details"]
    assert (mistake["found_class"], mistake["restarts"]) == ("DatasetLoadingError", 0)
    assert not mistake["finished"]
    assert (crash["found_class"], crash["restarts"], crash["finished"]) == ("RuntimeError", 1, True)
    assert not list((tmp_path / "trials").glob("trial_*")), "trials that went well are removed"


@pytest.mark.soak
def test_all_failures_end_in_the_right_verdict_and_action(tmp_path: Path) -> None:
    said: list[str] = []
    report = run_failures(seed=1, folder=tmp_path / "trials", say=said.append)
    assert report["failed"] == [], "\n".join(said)
    assert (report["unattended_share"], report["wrong_restarts"]) == (1.0, 0)


def test_the_command_refuses_classes_without_failures(tmp_path: Path) -> None:
    done = overland("chaos", "--classes", "Hang", "--folder", tmp_path / "trials")
    assert done.returncode == 2
    assert "give --failures too" in done.stderr
    assert not (tmp_path / "trials").exists()
