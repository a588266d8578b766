"""How a job ended: what Slurm says, beside what its nodes have written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from configs.errors import ConfigError, LaunchError
from configs.schema import LauncherConfig
from configs.slurm_checks import check_slurm
from infra.launch import make_launcher
from infra.launch.base import JobState
from infra.launch.slurm_record import NodeRecord
from infra.launch.slurm_status import ended_as, forgotten
from infra.launch.slurm_types import SlurmJob


def job(state: str, exit_code: int = 0, **more: Any) -> SlurmJob:
    values: dict[str, Any] = {
        "job_id": 7, "comment": "c", "state": state, "flags": frozenset(), "reason": "None",
        "nodes": ("a", "b"), "exit_code": exit_code, "signal": None, "derived_exit_code": 0,
        "restarts": 0, "started_at": 100.0, "ended_at": 160.0,
    }  # fmt: skip
    return SlurmJob(**(values | more))


def node(
    rank: int, state: str = "FAILED", ended_at: float | None = 150.5, **more: Any
) -> NodeRecord:
    return NodeRecord(
        job_id=7,
        node="ab"[rank],
        rank=rank,
        started_at=100.5 + rank,
        state=JobState(state),
        ended_at=ended_at,
        **more,
    )


@pytest.mark.parametrize(
    ("slurm", "nodes", "state", "exit_code", "signal"),
    [
        (job("COMPLETED"), [node(0, "COMPLETED", exit_code=0)], "COMPLETED", 0, None),
        (job("FAILED", 3), [], "FAILED", 3, None),
        (job("FAILED", 0, signal=9), [], "FAILED", None, 9),
        # The program's own exit says more than srun's.
        (job("FAILED", 137), [node(0, signal=9)], "FAILED", None, 9),
        # The first to fail says why; the others were ended for it.
        (job("FAILED", 1), [node(0, exit_code=143), node(1, ended_at=120.0, exit_code=1)], "FAILED", 1, None),
        # All wanted to be continued.
        (job("FAILED", 75), [node(0, exit_code=75), node(1, exit_code=75)], "FAILED", 75, None),
        (job("FAILED", 75), [node(0, ended_at=1.0, exit_code=75), node(1, exit_code=1)], "FAILED", 1, None),
        (job("NODE_FAIL"), [node(0, "RUNNING", None)], "NODE_FAIL", 0, None),
        (job("BOOT_FAIL"), [], "NODE_FAIL", 0, None),
        (job("DEADLINE"), [], "TIMEOUT", 0, None),
        (job("TIMEOUT"), [node(0, "CANCELLED", signal=15)], "TIMEOUT", None, 15),
        (job("PREEMPTED"), [], "PREEMPTED", 0, None),
        (job("OUT_OF_MEMORY", 0, signal=125), [], "OUT_OF_MEMORY", None, 125),
        (job("FAILED", 253), [node(0, exit_code=1)], "OUT_OF_MEMORY", 1, None),
        (job("FAILED", 1, derived_exit_code=253), [], "OUT_OF_MEMORY", 1, None),
        # A node that could not even begin; a script that was killed later on is another matter.
        (job("FAILED", 1, reason="JobLaunchFailure"), [], "NODE_FAIL", None, None),
        (job("FAILED", 0, signal=9, reason="JobLaunchFailure"), [node(0, signal=9)], "FAILED", None, 9),
        # Its own time limit, to the second.
        (job("FAILED", 143), [node(0, "TIMEOUT", signal=15, reason="time limit of 5 s")], "TIMEOUT", None, 15),
    ],
)  # fmt: skip
def test_ends(
    slurm: SlurmJob, nodes: list[NodeRecord], state: str, exit_code: int | None, signal: int | None
) -> None:
    ended = ended_as(slurm, nodes, cancelled=False)
    assert (ended.state, ended.exit_code, ended.signal) == (JobState(state), exit_code, signal)
    assert ended.nodes == ("a", "b")


def test_our_own_cancelling_is_told_from_a_persons() -> None:
    assert ended_as(job("CANCELLED"), [], cancelled=True).reason == "cancelled"
    assert "from outside" in ended_as(job("CANCELLED"), [], cancelled=False).reason
    # It had time to clean up, and ended well.
    saved = ended_as(job("COMPLETED"), [node(0, "COMPLETED", exit_code=0)], cancelled=True)
    assert (saved.state, saved.reason) == (JobState.CANCELLED, "cancelled")
    # What happens from outside meanwhile is what happened.
    assert ended_as(job("NODE_FAIL"), [], cancelled=True).state is JobState.NODE_FAIL


@pytest.mark.parametrize(
    ("slurm", "nodes", "state"),
    [
        # It left with 91; what its first nodes have said is of the first time.
        (job("FAILED", 91), [node(0, "RUNNING", None)], "NODE_FAIL"),
        (job("FAILED", 91), [node(0, exit_code=1)], "NODE_FAIL"),
        (job("FAILED", 1, restarts=1), [node(0, exit_code=1)], "NODE_FAIL"),
        (job("COMPLETED", restarts=1), [], "NODE_FAIL"),
        (job("FAILED", 91, flags=frozenset({"PREEMPTED"})), [], "PREEMPTED"),
        # Somebody has ended it in the queue.
        (job("CANCELLED", restarts=1), [], "CANCELLED"),
        # A program's own 91.
        (job("FAILED", 91), [node(0, exit_code=91)], "FAILED"),
    ],
)
def test_a_job_that_was_started_again(slurm: SlurmJob, nodes: list[NodeRecord], state: str) -> None:
    ended = ended_as(slurm, nodes, cancelled=False)
    assert ended.state is JobState(state)
    assert ("back into its queue" in ended.reason) is (state not in ("FAILED", "CANCELLED"))
    assert ended_as(slurm, nodes, cancelled=True).state is JobState.CANCELLED


def test_times_are_the_nodes_own() -> None:
    nodes = [node(0, exit_code=1), node(1, ended_at=158.25, exit_code=1)]
    ended = ended_as(job("FAILED", 1), nodes, cancelled=False)
    assert (ended.started_at, ended.ended_at) == (100.5, 158.25)
    ended = ended_as(job("FAILED", 1), [], cancelled=False)
    assert (ended.started_at, ended.ended_at) == (100.0, 160.0)


def test_a_job_that_slurm_has_forgotten() -> None:
    done = forgotten([node(0, "COMPLETED", exit_code=0)], cancelled=False)
    assert (done.state, done.exit_code, done.nodes) == (JobState.COMPLETED, 0, ("a",))
    lost = forgotten([node(0, exit_code=1), node(1, "RUNNING", None)], cancelled=False)
    assert (lost.state, lost.nodes) == (JobState.NODE_FAIL, ("a", "b"))
    assert "does not know the job any more" in lost.reason
    assert forgotten([], cancelled=True).state is JobState.CANCELLED
    ended_by_slurm = forgotten([node(0, "CANCELLED", signal=15)], cancelled=False)
    assert (ended_by_slurm.state, ended_by_slurm.signal) == (JobState.NODE_FAIL, 15)
    assert "has ended its processes" in ended_by_slurm.reason


# --- the config section ---------------------------------------------------------------------------


def launcher_config(**slurm: Any) -> LauncherConfig:
    right = {"url": "http://login:6820", "token_file": "/home/me/token"}
    return LauncherConfig.model_validate({"kind": "slurm", "slurm": right | slurm})


def test_a_right_section_has_no_problems() -> None:
    assert list(check_slurm(launcher_config(time_limit_minutes=60, warning_s=300))) == []
    assert list(check_slurm(launcher_config(token_file=None, token_command=["print-token"]))) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": None}, "url is missing"),
        ({"url": "login:6820"}, "is not an address like"),
        ({"url": "http://me:secret@login:6820"}, "names a user or password"),
        ({"url": "http://login:99999"}, "is not an address like"),
        ({"token_file": None}, "needs token_file or token_command"),
        ({"token_command": ["x"]}, "one of them is enough"),
        ({"scontrol": []}, "scontrol is empty"),
        ({"warning_s": 60}, "needs time_limit_minutes"),
        ({"warning_s": 60, "time_limit_minutes": 1}, r"warning_s \(60\) must be less than"),
        ({"gpu_type": "h100"}, "gpu_type needs gpus_per_node"),
    ],
)
def test_what_is_wrong_with_a_section(settings: dict[str, Any], words: str) -> None:
    config = launcher_config(**settings)
    problems = list(check_slurm(config))
    assert len(problems) == 1
    with pytest.raises(LaunchError, match=words):
        make_launcher(config)


def test_the_configs_check_says_so_too(run_path: Path) -> None:
    from configs.checks import check_launchable
    from configs.schema import RunConfig

    config = RunConfig.model_construct(launcher=launcher_config(url=None))
    with pytest.raises(ConfigError, match="url is missing"):
        check_launchable(config)
    check_launchable(RunConfig.model_construct(launcher=launcher_config()))


def test_a_token_file_is_absolute_and_unknown_keys_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert launcher_config(token_file="~/t").slurm.token_file == Path("/home/me/t")
    assert launcher_config(token_file="t").slurm.token_file == Path.cwd() / "t"
    with pytest.raises(ValidationError):
        launcher_config(partitions="a")
