"""Real evaluations whose processes are killed: a few trials, and all twenty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import overland

from flows.chaos.evaluation import TARGETS, make_blows, run_evaluation_chaos
from flows.show.chaos_evaluation import print_evaluation_chaos


def test_twenty_trials_strike_everything_at_moments_that_follow_from_the_seed() -> None:
    blows = {number: make_blows(0, number) for number in range(1, 21)}
    assert blows == {number: make_blows(0, number) for number in range(1, 21)}
    assert blows != {number: make_blows(1, number) for number in range(1, 21)}
    struck = [blow.target for of_trial in blows.values() for blow in of_trial]
    assert all(struck.count(target) >= 4 for target in TARGETS)
    assert sum(len(of_trial) == 2 for of_trial in blows.values()) == 5
    assert len({blow.share for of_trial in blows.values() for blow in of_trial}) == len(struck)


def check(folder: Path, only: list[int] | None) -> None:
    said: list[str] = []
    report = run_evaluation_chaos(trials=20, seed=0, only=only, folder=folder, say=said.append)
    explained = "\n".join(said)
    assert report["failed"] == [], explained
    assert report["identical"] == report["trials"] == len(only or range(20)), explained
    assert report["shards_twice"] == 0, explained
    assert report["shards_begun_again"] <= report["workers_lost"], explained
    print_evaluation_chaos(report, json=False)


@pytest.mark.slow
@pytest.mark.soak
def test_a_worker_and_a_coordinator_that_are_killed_change_no_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [make_blows(0, number)[0].target for number in (1, 4)] == ["worker", "coordinator"]
    check(tmp_path / "chaos", [1, 4])
    assert "2 of 2 trials with the undisturbed scores bit for bit" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.soak
def test_twenty_trials(tmp_path: Path) -> None:
    check(tmp_path / "chaos", None)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    done = overland("chaos", "--evaluation", "--failures", "--folder", tmp_path / "chaos", "--json")
    assert done.returncode == 2
    assert "--evaluation is struck on this machine" in done.stderr
    done = overland("chaos", "--evaluation", "--runs", "2", "--trial", "3", "--json")
    assert done.returncode == 2
    assert "--trial" in json.dumps(done.stderr)
