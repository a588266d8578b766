"""What every launcher has to do for ranks: start, look at and end them together."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import psutil
import pytest
from job_helpers import is_running, log_text, wait_for_end, wait_for_pids

from configs.stacks import RankStack
from infra.launch.base import JobSpec, JobState, Launcher
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

RANK = """
import os, sys, time
rank = os.environ["RANK"]
folder, mode = sys.argv[1:]
line = f"rank {rank} of {os.environ['WORLD_SIZE']} local {os.environ['LOCAL_RANK']}\\n"
os.write(1, line.encode())  # whole: others write too
os.makedirs(folder, exist_ok=True)
open(f"{folder}/{os.getpid()}", "w").close()
if mode == "wait":
    time.sleep(600)
"""


def distributed_job(tmp_path: Path, mode: str) -> JobSpec:
    """Two ranks that need nothing but torchrun's environment."""
    script = tmp_path / "a script.py"
    script.write_text(RANK)
    argv = (str(script), str(tmp_path / "pids"), mode)
    spec = JobSpec(key="run/attempts/001", name="train", argv=argv, job_dir=tmp_path / "a job")
    return dataclasses.replace(
        spec, distributed=True, processes_per_node=2, environment={"OMP_NUM_THREADS": "1"}
    )


def test_distributed_job(launcher: Launcher, tmp_path: Path) -> None:
    handle = launcher.submit(distributed_job(tmp_path, "leave"))
    status = wait_for_end(launcher, handle)
    text = log_text(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.COMPLETED, 0), text
    lines = [line for line in text.splitlines() if line.startswith("rank")]
    assert sorted(lines) == ["rank 0 of 2 local 0", "rank 1 of 2 local 1"]


def test_ranks_are_looked_at_without_being_stopped(launcher: Launcher, tmp_path: Path) -> None:
    handle = launcher.submit(distributed_job(tmp_path, "wait"))
    pids = wait_for_pids(tmp_path / "pids", 2)
    paths = launcher.stacks(handle, timeout_s=60.0)
    stacks = [RankStack.model_validate_json(path.read_bytes()) for path in paths]
    assert [stack.rank for stack in stacks] == [0, 1]
    assert {stack.pid for stack in stacks} == set(pids)
    assert {stack.node for stack in stacks} <= set(launcher.nodes())
    assert all(stack.frames or stack.error for stack in stacks)
    assert all(is_running(pid) for pid in pids)
    launcher.cancel(handle, grace_s=0.0)
    assert launcher.stacks(handle, timeout_s=60.0) == []


def test_killed_rank_fails_the_job(launcher: Launcher, tmp_path: Path) -> None:
    handle = launcher.submit(distributed_job(tmp_path, "wait"))
    pids = wait_for_pids(tmp_path / "pids", 2)
    os.kill(pids[0], signal.SIGKILL)
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.FAILED, 1)
    assert not any(is_running(pid) for pid in pids)


def test_ranks_do_not_outlive_a_killed_torchrun(launcher: Launcher, tmp_path: Path) -> None:
    handle = launcher.submit(distributed_job(tmp_path, "wait"))
    pids = wait_for_pids(tmp_path / "pids", 2)
    torchrun = psutil.Process(pids[0]).parent()
    assert torchrun is not None
    torchrun.kill()
    wait_until(lambda: not any(is_running(pid) for pid in pids), "the ranks to end")
    status = wait_for_end(launcher, handle)
    assert (status.state, status.signal) == (JobState.FAILED, 9)
