"""Real trials: real processes are struck where it hurts most."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import overland

from configs.rundir import RunDir
from flows.chaos.run import run_chaos
from flows.chaos.schedule import Moment, Plan, Strike
from flows.chaos.site import processes_of

pytestmark = [pytest.mark.slow, pytest.mark.soak]

IN_A_SAVE = Moment("save", step=15, stage="opened")
IN_A_COMMIT = Moment("commit", step=10, stage="parts")
PLANS = [
    Plan(1, (Strike("rank", "SIGKILL", 1, IN_A_SAVE),)),
    Plan(2, (Strike("writer", "SIGSTOP", 0, IN_A_COMMIT),)),
    Plan(3, (Strike("flow", "SIGKILL", 0, IN_A_COMMIT),)),
]


def test_what_is_struck_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    said: list[str] = []
    report = run_chaos(
        trials=len(PLANS), seed=5, folder=tmp_path / "chaos", say=said.append, plans=PLANS
    )
    explained = "\n".join(said)
    assert (report["trials"], report["identical"], report["lost_steps"]) == (3, 3, 0), explained
    assert report["failed"] == [], explained
    rank, writer, flow = report["details"]
    assert rank["strikes"][0]["save_step"] >= 15
    assert rank["outcomes"][-1] == "completed" and len(rank["outcomes"]) == 2
    assert [restart["lost_steps"] for restart in rank["restarts"]] == [0]
    assert rank["restarts"][0]["resumed_step"] >= 10
    assert writer["outcomes"] == ["completed"], "a writer that stops costs no attempt"
    assert flow["outcomes"] == ["completed"] and flow["flow_starts"] == 2
    assert not processes_of(RunDir(tmp_path / "chaos")), "nothing is left behind"
    assert not list((tmp_path / "chaos").glob("trial_*")), "trials that went well are removed"


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    done = overland("chaos", "--runs", "0", "--folder", tmp_path / "chaos", "--json")
    assert done.returncode == 2
    assert "--runs" in done.stderr
    assert not (tmp_path / "chaos").exists()
