"""Jobs that hang, as a user's run meets them: all ranks are looked at, and the one behind is named."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from configs.events import StepEvent
from configs.records import Verdict
from configs.rundir import AttemptDir, RunDir
from configs.stacks import RankStack
from tests.flows.helpers import overland, rank_processes, start_overland, tiny_config, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]

LIMITS = {"hang_timeout_s": 8.0, "min_hang_timeout_s": 3.0, "max_restarts": 0}


def stacks_of(attempt: AttemptDir) -> dict[int, RankStack]:
    paths = attempt.stacks_dir.glob("rank_*.json")
    stacks = [RankStack.model_validate_json(path.read_bytes()) for path in paths]
    return {stack.rank: stack for stack in stacks}


def verdict_of(attempt: AttemptDir) -> Verdict:
    verdict = attempt.verdict()
    assert verdict is not None
    return verdict


@pytest.mark.soak
def test_the_rank_that_hangs_is_named(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path,
        train={"steps": 24},
        faults=[{"kind": "hang", "step": 11, "rank": 1}],
        recovery={**LIMITS, "max_restarts": 3},
    )
    result = overland("run", config, "--json")
    assert result.returncode == 0, result.stderr
    attempt = RunDir(tmp_path / "run").attempt(1)
    stacks = stacks_of(attempt)
    assert {rank: stack.taken_by for rank, stack in stacks.items()} == {0: "py-spy", 1: "py-spy"}
    assert [(stacks[r].step, stacks[r].phase) for r in (0, 1)] == [
        (11, "gradients"),
        (11, "data"),
    ]
    verdict = verdict_of(attempt)
    assert (verdict.failure_class, verdict.method) == ("Hang", "stacks")
    assert verdict.faulty_rank == 1
    assert verdict.faulty_node == stacks[1].node
    assert "faults.py" in verdict.root_cause_text
    record = attempt.record()
    assert record is not None and record.hung
    # Torch's own record of what each rank has begun.
    for rank in (0, 1):
        dump = json.loads((attempt.stacks_dir / f"collectives_rank_{rank:05d}.json").read_text())
        assert dump["gloo"]["entries"]


@pytest.mark.soak
def test_a_stopped_rank_is_named(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path,
        train={"steps": 2000, "validation_interval_steps": 1000},
        checkpoint={"interval_steps": 1000},
        recovery=LIMITS,
    )
    log = tmp_path / "log"
    flow = start_overland("run", config, log=log)
    attempt = RunDir(tmp_path / "run").attempt(1)
    wait_for(lambda: len(steps_of(attempt)) >= 12, flow, log)
    rank_1 = rank_processes(tmp_path / "run")[1]
    rank_1.send_signal(signal.SIGSTOP)
    assert flow.wait(120) == 1, log.read_text()
    assert stacks_of(attempt)[1].state == "stopped"
    verdict = verdict_of(attempt)
    assert (verdict.failure_class, verdict.faulty_rank) == ("Hang", 1)
    assert any("rank 1 is stopped" in line for line in verdict.evidence)
    assert not rank_1.is_running()


def steps_of(attempt: AttemptDir) -> list[int]:
    return [event.step for event in attempt.events() if isinstance(event, StepEvent)]
