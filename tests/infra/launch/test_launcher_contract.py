"""What every launcher must do, with real processes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from job_helpers import is_running, log_text, python_job, wait_for_end, wait_for_pids

from configs.errors import LaunchError
from configs.schema import LauncherConfig
from infra.launch.base import JobHandle, JobSpec, JobState, Launcher

# Leaves a file named by its pid in the folder of the first argument, then sleeps.
SLEEP = """
import os, sys, time
os.makedirs(sys.argv[1], exist_ok=True)
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
time.sleep(600)
"""

IGNORE_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + SLEEP

# The program itself and two orphans, one of them in a session of its own.
FAMILY = """
import os
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
    elif os.fork() != 0:
        os._exit(0)
"""

# The main process leaves once the two others have left their pids.
LEAVE_FAMILY = """
import sys, time
if os.getpid() == main:
    while not os.path.isdir(sys.argv[1]) or len(os.listdir(sys.argv[1])) < 2:
        time.sleep(0.01)
    sys.exit(3)
"""

# Appends a line for each run, then takes a moment.
COUNT_RUNS = """
import sys, time
with open(sys.argv[1], "a") as file:
    file.write("run\\n")
time.sleep(0.3)
"""

# A flow in miniature: submits one job from its own process, then waits to be killed.
FLOW = """
import sys, time
from pathlib import Path
from configs.schema import LauncherConfig
from infra.launch import make_launcher
from infra.launch.base import JobSpec
from tests.waiting import wait_until
launcher = make_launcher(LauncherConfig.model_validate_json(sys.argv[1]))
spec = JobSpec(key=sys.argv[2], name="test", argv=tuple(sys.argv[4:]), job_dir=Path(sys.argv[3]))
print("ready", flush=True)
sys.stdin.readline()
print(launcher.submit(spec).job_id, flush=True)
time.sleep(600)
"""


def start_flow(config: LauncherConfig, spec: JobSpec) -> subprocess.Popen[str]:
    """A process that submits `spec` when it gets a line."""
    site = config.model_dump_json()
    command = [sys.executable, "-c", FLOW, site, spec.key, str(spec.job_dir), *spec.argv]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def tell(flow: subprocess.Popen[str]) -> None:
    """Have it submit, now that it is ready."""
    assert flow.stdin is not None
    assert flow.stdout is not None
    assert flow.stdout.readline() == "ready\n"
    flow.stdin.write("go\n")
    flow.stdin.flush()


def kill(flow: subprocess.Popen[str]) -> str:
    """SIGKILL; returns what it had still printed."""
    flow.kill()
    return flow.communicate()[0]


# --- how jobs end ---------------------------------------------------------------------------------


def test_success(launcher: Launcher, tmp_path: Path) -> None:
    before = time.time()
    handle = launcher.submit(python_job(tmp_path / "job", "print('hello')"))
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code, status.signal) == (JobState.COMPLETED, 0, None)
    assert set(status.nodes) <= set(launcher.nodes())
    assert len(status.nodes) == 1
    assert status.started_at is not None
    assert status.ended_at is not None
    assert before <= status.started_at <= status.ended_at <= time.time()
    assert log_text(launcher, handle) == "hello\n"


def test_failure_keeps_exit_code_and_both_outputs(launcher: Launcher, tmp_path: Path) -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(7)"
    handle = launcher.submit(python_job(tmp_path / "job", code))
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code, status.signal) == (JobState.FAILED, 7, None)
    assert log_text(launcher, handle).splitlines() == ["out", "err"]


def test_end_by_signal(launcher: Launcher, tmp_path: Path) -> None:
    code = "import os; os.kill(os.getpid(), 9)"
    handle = launcher.submit(python_job(tmp_path / "job", code))
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code, status.signal) == (JobState.FAILED, None, 9)


def test_missing_program_fails_with_its_name(launcher: Launcher, tmp_path: Path) -> None:
    spec = JobSpec("key", "test", ("/no/such/program",), tmp_path / "job")
    handle = launcher.submit(spec)
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.FAILED, 127)
    assert "/no/such/program" in status.reason + log_text(launcher, handle)


def test_time_limit(launcher: Launcher, tmp_path: Path) -> None:
    spec = python_job(tmp_path / "job", SLEEP, str(tmp_path / "pids"))
    handle = launcher.submit(dataclasses.replace(spec, time_limit_s=0.5))
    (pid,) = wait_for_pids(tmp_path / "pids", 1)
    status = wait_for_end(launcher, handle)
    assert (status.state, status.reason) == (JobState.TIMEOUT, "time limit of 0.5 s")
    assert not is_running(pid)


def test_nothing_of_an_ended_job_runs(launcher: Launcher, tmp_path: Path) -> None:
    code = "import os\nmain = os.getpid()" + FAMILY + LEAVE_FAMILY + SLEEP
    handle = launcher.submit(python_job(tmp_path / "job", code, str(tmp_path / "pids")))
    pids = wait_for_pids(tmp_path / "pids", 2)
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)
    assert [pid for pid in pids if is_running(pid)] == []


# --- what the program gets ------------------------------------------------------------------------


def test_arguments_arrive_unchanged(launcher: Launcher, tmp_path: Path) -> None:
    arguments = ("two words", "--", "-x", "--key=y", "", "$HOME `id` 'q'", "\u00e4\u4e2d", "--")
    code = "import sys, json; print(json.dumps(sys.argv[1:]))"
    handle = launcher.submit(python_job(tmp_path / "job", code, *arguments))
    wait_for_end(launcher, handle)
    assert tuple(json.loads(log_text(launcher, handle))) == arguments


def test_environment_is_added_and_not_written_down(launcher: Launcher, tmp_path: Path) -> None:
    code = "import os; print(os.environ['TEST_TOKEN'][::-1], 'PATH' in os.environ)"
    spec = dataclasses.replace(
        python_job(tmp_path / "job", code), environment={"TEST_TOKEN": "s3cr3t-value"}
    )
    handle = launcher.submit(spec)
    wait_for_end(launcher, handle)
    assert log_text(launcher, handle) == "eulav-t3rc3s True\n"
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert [path for path in written if b"s3cr3t-value" in path.read_bytes()] == []


def test_program_reads_end_of_file_and_no_signal_is_blocked(
    launcher: Launcher, tmp_path: Path
) -> None:
    code = "import sys, signal; print(sys.stdin.read() == '', signal.pthread_sigmask(0, []))"
    handle = launcher.submit(python_job(tmp_path / "job", code))
    wait_for_end(launcher, handle)
    assert log_text(launcher, handle) == "True set()\n"


# --- cancelling -----------------------------------------------------------------------------------


def test_cancel_lets_the_program_clean_up(launcher: Launcher, tmp_path: Path) -> None:
    code = (
        "import signal, sys\n"
        "def leave(*_):\n    print('cleaned up'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n" + SLEEP
    )
    handle = launcher.submit(python_job(tmp_path / "job", code, str(tmp_path / "pids")))
    (pid,) = wait_for_pids(tmp_path / "pids", 1)
    launcher.cancel(handle)
    status = launcher.poll(handle)
    assert (status.state, status.reason) == (JobState.CANCELLED, "cancelled")
    assert not is_running(pid)
    assert log_text(launcher, handle) == "cleaned up\n"


@pytest.mark.parametrize("program", [SLEEP, IGNORE_SIGTERM], ids=["obeys", "ignores SIGTERM"])
def test_cancel_ends_the_whole_family(launcher: Launcher, tmp_path: Path, program: str) -> None:
    handle = launcher.submit(python_job(tmp_path / "job", FAMILY + program, str(tmp_path / "pids")))
    pids = wait_for_pids(tmp_path / "pids", 3)
    launcher.cancel(handle, grace_s=0.3)
    assert launcher.poll(handle).state is JobState.CANCELLED
    assert [pid for pid in pids if is_running(pid)] == []


def test_cancel_again_and_after_the_end_does_nothing(launcher: Launcher, tmp_path: Path) -> None:
    cancelled = launcher.submit(python_job(tmp_path / "a", SLEEP, str(tmp_path / "pids"), key="a"))
    launcher.cancel(cancelled, grace_s=0.0)
    status = launcher.poll(cancelled)
    launcher.cancel(cancelled)
    assert launcher.poll(cancelled) == status
    assert status.state is JobState.CANCELLED

    completed = launcher.submit(python_job(tmp_path / "b", "", key="b"))
    wait_for_end(launcher, completed)
    launcher.cancel(completed)
    assert launcher.poll(completed).state is JobState.COMPLETED


# --- submitted once -------------------------------------------------------------------------------


def test_find(launcher: Launcher, tmp_path: Path) -> None:
    assert launcher.find(tmp_path / "job") is None
    handle = launcher.submit(python_job(tmp_path / "job", ""))
    assert launcher.find(tmp_path / "job") == handle
    wait_for_end(launcher, handle)
    assert launcher.find(tmp_path / "job") == handle


def test_submitting_again_finds_the_job(launcher: Launcher, tmp_path: Path) -> None:
    spec = python_job(tmp_path / "job", COUNT_RUNS, str(tmp_path / "runs"))
    handle = launcher.submit(spec)
    assert launcher.submit(spec) == handle
    wait_for_end(launcher, handle)
    assert launcher.submit(spec) == handle
    assert launcher.poll(handle).state is JobState.COMPLETED
    assert (tmp_path / "runs").read_text() == "run\n"


def test_another_key_in_the_same_folder_is_refused(launcher: Launcher, tmp_path: Path) -> None:
    launcher.submit(python_job(tmp_path / "job", "", key="one"))
    with pytest.raises(LaunchError, match=r"holds the job 'one'; 'two' needs its own folder"):
        launcher.submit(python_job(tmp_path / "job", "", key="two"))


def test_eight_submitters_at_once_start_one_job(
    launcher: Launcher, launcher_config: LauncherConfig, tmp_path: Path
) -> None:
    spec = python_job(tmp_path / "job", COUNT_RUNS, str(tmp_path / "runs"))
    flows = [start_flow(launcher_config, spec) for _ in range(8)]
    for flow in flows:
        tell(flow)
    ids = {flow.stdout.readline().strip() for flow in flows if flow.stdout is not None}
    for flow in flows:
        kill(flow)
    handle = launcher.find(tmp_path / "job")
    assert handle is not None
    assert ids == {handle.job_id}
    assert wait_for_end(launcher, handle).state is JobState.COMPLETED
    assert (tmp_path / "runs").read_text() == "run\n"


def test_job_outlives_its_submitter(
    launcher: Launcher, launcher_config: LauncherConfig, tmp_path: Path
) -> None:
    spec = python_job(tmp_path / "job", COUNT_RUNS, str(tmp_path / "runs"))
    flow = start_flow(launcher_config, spec)
    tell(flow)
    assert flow.stdout is not None
    job_id = flow.stdout.readline().strip()
    kill(flow)
    handle = launcher.find(tmp_path / "job")
    assert handle is not None
    assert handle.job_id == job_id
    assert wait_for_end(launcher, handle).state is JobState.COMPLETED
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.08, 0.2])
def test_submitter_killed_while_it_submits(
    launcher: Launcher, launcher_config: LauncherConfig, tmp_path: Path, delay_s: float
) -> None:
    spec = python_job(tmp_path / "job", COUNT_RUNS, str(tmp_path / "runs"))
    flow = start_flow(launcher_config, spec)
    tell(flow)
    time.sleep(delay_s)
    kill(flow)
    handle = launcher.submit(spec)
    assert wait_for_end(launcher, handle).state is JobState.COMPLETED
    assert (tmp_path / "runs").read_text() == "run\n"


def test_poll_without_a_job_is_an_error(launcher: Launcher, tmp_path: Path) -> None:
    handle = JobHandle("key", "0", tmp_path / "nowhere", 0.0)
    with pytest.raises(LaunchError, match="there is no job"):
        launcher.poll(handle)
    with pytest.raises(LaunchError, match="there is no job"):
        launcher.cancel(handle)
