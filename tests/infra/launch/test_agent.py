"""The agent that starts the ranks of a distributed job, with real ranks that train nothing."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from pathlib import Path

import psutil
import pytest
from job_helpers import is_running, log_text, wait_for_end, wait_for_pids

from configs.errors import EXIT_CONTINUE
from configs.progress import progress_folder
from configs.stacks import RankStack
from infra.launch.base import JobHandle, JobSpec, JobState
from infra.launch.local import LocalLauncher
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

# Ranks note the signals that they get, and leave when they are told to, with the code of their rank.
LEAVES = """
    import os, signal, sys, threading
    rank, codes, folder = int(os.environ["RANK"]), sys.argv[1].split(","), sys.argv[2]
    got = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda n, _: got.append(signal.Signals(n).name))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    os.makedirs(folder, exist_ok=True)
    open(f"{folder}/{os.getpid()}", "w").close()
    while not got:
        signal.sigtimedwait([], 0.05)
    signal.sigtimedwait([], 0.5 + rank)
    print(f"rank {rank} got {got[0]}", flush=True)
    sys.exit(int(codes[rank]))
"""

# Rank 0 waits in a collective for rank 1, which does something else.
HANGS = """
    import os, sys, time, subprocess
    sys.path.insert(0, sys.argv[2])
    import torch, torch.distributed as dist
    from tasks.train.progress import Progress
    progress = Progress.open(int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    progress.begin_step(7)
    def reduce_for_ever():
        progress.enter("gradients")
        dist.all_reduce(tensor)
    def forget_the_others():
        subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])
    open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
    forget_the_others() if dist.get_rank() == 1 else reduce_for_ever()
"""


@pytest.fixture
def launcher() -> LocalLauncher:
    return LocalLauncher()


def start(launcher: LocalLauncher, tmp_path: Path, code: str, *arguments: str) -> JobHandle:
    (tmp_path / "program.py").write_text(textwrap.dedent(code))
    (tmp_path / "pids").mkdir()
    spec = JobSpec(
        key="run/attempts/001",
        name="test",
        argv=(str(tmp_path / "program.py"), *arguments),
        job_dir=tmp_path / "job",
        environment={"OMP_NUM_THREADS": "1"},
        distributed=True,
        processes_per_node=2,
    )
    return launcher.submit(spec)


def agent_of(pids: list[int]) -> psutil.Process:
    agent = psutil.Process(pids[0]).parent()
    assert agent is not None
    return agent


def shared_folder(handle: JobHandle) -> Path:
    return progress_folder(handle.job_id, handle.job_dir)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda n: n.name)
def test_a_signal_goes_to_the_ranks_and_they_leave_in_their_own_time(
    launcher: LocalLauncher, tmp_path: Path, number: signal.Signals
) -> None:
    handle = start(launcher, tmp_path, LEAVES, "75,75", str(tmp_path / "pids"))
    pids = wait_for_pids(tmp_path / "pids", 2)
    assert shared_folder(handle).is_dir()
    agent_of(pids).send_signal(number)
    status = wait_for_end(launcher, handle)
    text = log_text(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.FAILED, EXIT_CONTINUE), text
    # The second rank was not cut short when the first had left.
    assert f"rank 0 got {number.name}" in text
    assert f"rank 1 got {number.name}" in text
    assert not shared_folder(handle).exists()


def test_a_rank_that_fails_fails_the_job_whatever_the_others_want(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    handle = start(launcher, tmp_path, LEAVES, "75,3", str(tmp_path / "pids"))
    agent_of(wait_for_pids(tmp_path / "pids", 2)).terminate()
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.FAILED, 1)
    text = log_text(launcher, handle)
    assert "ChildFailedError" in text
    assert "exitcode  : 3" in text


def test_cancelling_lets_the_ranks_leave(launcher: LocalLauncher, tmp_path: Path) -> None:
    handle = start(launcher, tmp_path, LEAVES, "75,75", str(tmp_path / "pids"))
    pids = wait_for_pids(tmp_path / "pids", 2)
    launcher.cancel(handle, grace_s=60.0)
    status = launcher.poll(handle)
    assert (status.state, status.exit_code) == (JobState.CANCELLED, EXIT_CONTINUE)
    assert not any(is_running(pid) for pid in pids)


def test_a_rank_that_waits_in_vain_is_ended_soon_after_one_has_died(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    """It catches SIGTERM, as a training rank does, and would wait on."""
    stubborn = LEAVES.replace("while not got:", "while True:")
    handle = start(launcher, tmp_path, stubborn, "75,75", str(tmp_path / "pids"))
    pids = wait_for_pids(tmp_path / "pids", 2)
    os.kill(pids[0], signal.SIGKILL)
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.FAILED, 1)
    assert not any(is_running(pid) for pid in pids)


def test_without_ranks_there_is_nothing_to_wait_for(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    """SIGTERM while torch is still being imported."""
    handle = start(launcher, tmp_path, LEAVES, "0,0", str(tmp_path / "pids"))
    record = json.loads((handle.job_dir / "job.json").read_text())
    supervisor = psutil.Process(record["pid"])
    wait_until(lambda: bool(supervisor.children()), "the agent")
    wait_until(lambda: is_deaf(supervisor.children()[0].pid), "the agent's first lines")
    supervisor.children()[0].terminate()
    status = wait_for_end(launcher, handle)
    assert (status.state, status.signal) == (JobState.FAILED, signal.SIGTERM)
    assert list((tmp_path / "pids").iterdir()) == []


def is_deaf(pid: int) -> bool:
    """Whether the process has blocked SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text()
    (blocked,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")]
    return bool(int(blocked, 16) >> (signal.SIGTERM - 1) & 1)


def test_the_shared_folder_goes_also_when_the_agent_was_killed(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    handle = start(launcher, tmp_path, LEAVES, "0,0", str(tmp_path / "pids"))
    agent_of(wait_for_pids(tmp_path / "pids", 2)).kill()
    wait_for_end(launcher, handle)
    assert not shared_folder(handle).exists()


def hung_job(launcher: LocalLauncher, tmp_path: Path) -> tuple[JobHandle, list[int]]:
    """Its two ranks have come to where they stay."""
    root = str(Path(__file__).parents[3])
    handle = start(launcher, tmp_path, HANGS, str(tmp_path / "pids"), root)
    pids = wait_for_pids(tmp_path / "pids", 2)
    wait_until(lambda: any(psutil.Process(pid).children() for pid in pids), "the child of rank 1")
    return handle, pids


def stacks(launcher: LocalLauncher, handle: JobHandle) -> list[RankStack]:
    paths = launcher.stacks(handle, timeout_s=30.0)
    return [RankStack.model_validate_json(path.read_bytes()) for path in paths]


def test_stacks_of_a_hung_job(launcher: LocalLauncher, tmp_path: Path) -> None:
    handle, pids = hung_job(launcher, tmp_path)
    waiting, behind = stacks(launcher, handle)
    assert (waiting.rank, waiting.step, waiting.phase) == (0, 7, "gradients")
    assert (behind.rank, behind.step, behind.phase) == (1, 7, "data")
    assert {waiting.pid, behind.pid} == set(pids)
    assert {waiting.node, behind.node} == set(launcher.nodes())
    assert (waiting.taken_by, behind.taken_by) == ("py-spy", "py-spy")
    assert "reduce_for_ever" in [frame.function for frame in waiting.frames]
    assert "all_reduce" in [frame.function for frame in waiting.frames]
    assert "forget_the_others" in [frame.function for frame in behind.frames]
    assert "forget_the_others" in behind.stack
    (child,) = behind.children
    assert child.frames[0].function == "<module>"
    assert all(is_running(pid) for pid in pids)

    first = behind.request
    again = stacks(launcher, handle)
    assert [rank.rank for rank in again] == [0, 1]
    assert again[0].request != first
    launcher.cancel(handle, grace_s=0.0)
    assert launcher.stacks(handle, timeout_s=30.0) == []


def test_a_stopped_rank_is_seen_as_stopped(launcher: LocalLauncher, tmp_path: Path) -> None:
    handle, _ = hung_job(launcher, tmp_path)
    rank_0 = psutil.Process(stacks(launcher, handle)[0].pid)
    rank_0.suspend()
    stopped, other = stacks(launcher, handle)
    assert (stopped.state, other.state) == ("stopped", "sleeping")
    assert "reduce_for_ever" in [frame.function for frame in stopped.frames]
    launcher.cancel(handle, grace_s=0.0)


def test_a_silent_agent_costs_the_time_and_raises_nothing(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    handle, pids = hung_job(launcher, tmp_path)
    agent_of(pids).suspend()
    assert launcher.stacks(handle, timeout_s=1.0) == []
    launcher.cancel(handle, grace_s=0.0)
    assert not any(is_running(pid) for pid in pids)


def test_jobs_that_are_not_distributed_have_no_stacks(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    spec = JobSpec("key", "test", ("/bin/sleep", "60"), tmp_path / "job")
    handle = launcher.submit(spec)
    assert launcher.stacks(handle, timeout_s=30.0) == []
    assert json.loads((tmp_path / "job" / "job.json").read_text())["state"] == "RUNNING"
    launcher.cancel(handle, grace_s=0.0)
