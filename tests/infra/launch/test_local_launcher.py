"""The local launcher's own ways: supervisors that die, process numbers that come back, niceness."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from job_helpers import is_running, log_text, python_job, wait_for_end, wait_for_pids

from configs.errors import LaunchError
from infra.launch.base import JobHandle, JobSpec, JobState
from infra.launch.local import LocalLauncher
from infra.launch.processes import JOB_ID_VARIABLE, live_processes_of_job
from tests.waiting import wait_until

# A program with a child in another session; both leave their pids.
PAIR = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
os.makedirs(sys.argv[1], exist_ok=True)
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
time.sleep(600)
"""


@pytest.fixture
def launcher() -> LocalLauncher:
    return LocalLauncher()


def supervisor_of(handle: JobHandle) -> psutil.Process:
    return psutil.Process(read_job(handle)["pid"])


def read_job(handle: JobHandle) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((handle.job_dir / "job.json").read_text())
    return value


def start_pair(launcher: LocalLauncher, tmp_path: Path) -> tuple[JobHandle, list[int]]:
    handle = launcher.submit(python_job(tmp_path / "job", PAIR, str(tmp_path / "pids")))
    return handle, wait_for_pids(tmp_path / "pids", 2)


def test_killed_supervisor_is_a_node_failure_and_nothing_is_left(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    handle, pids = start_pair(launcher, tmp_path)
    assert launcher.poll(handle).state is JobState.RUNNING
    supervisor = supervisor_of(handle)
    supervisor.kill()
    wait_until(lambda: not is_running(supervisor.pid), "the supervisor to end")
    status = launcher.poll(handle)
    assert (status.state, status.exit_code, status.signal) == (JobState.NODE_FAIL, None, None)
    assert f"supervisor (pid {supervisor.pid}) is gone" in status.reason
    assert [pid for pid in pids if is_running(pid)] == []
    assert launcher.poll(handle) == status
    assert launcher.submit(python_job(tmp_path / "job", PAIR)) == handle


def test_cancel_works_when_the_supervisor_is_stopped(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.launch.local._KILL_TIMEOUT_S", 0.5)
    handle, pids = start_pair(launcher, tmp_path)
    supervisor_of(handle).suspend()
    launcher.cancel(handle, grace_s=0.0)
    assert launcher.poll(handle).state is JobState.CANCELLED
    assert [pid for pid in pids if is_running(pid)] == []


def test_cancel_needs_no_room_on_the_disk(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    handle, pids = start_pair(launcher, tmp_path)
    monkeypatch.setattr("infra.launch.local.write_json", full)
    launcher.cancel(handle)
    assert launcher.poll(handle).state is JobState.CANCELLED
    assert [pid for pid in pids if is_running(pid)] == []


def test_terminated_supervisor_ends_its_job(launcher: LocalLauncher, tmp_path: Path) -> None:
    handle, pids = start_pair(launcher, tmp_path)
    supervisor_of(handle).terminate()
    status = wait_for_end(launcher, handle)
    assert (status.state, status.reason) == (JobState.CANCELLED, "the supervisor got SIGTERM")
    assert status.signal == signal.SIGTERM
    assert [pid for pid in pids if is_running(pid)] == []


def test_reused_process_number_is_noticed(launcher: LocalLauncher, tmp_path: Path) -> None:
    handle = launcher.submit(python_job(tmp_path / "job", ""))
    wait_for_end(launcher, handle)
    with subprocess.Popen(["/bin/sleep", "600"]) as stranger:
        created = psutil.Process(stranger.pid).create_time()
        forged = {"state": "RUNNING", "pid": stranger.pid, "ended_at": None, "exit_code": None}
        job = read_job(handle) | forged
        record_path = handle.job_dir / "job.json"

        record_path.write_text(json.dumps(job | {"create_time": created}))
        assert launcher.poll(handle).state is JobState.RUNNING
        record_path.write_text(json.dumps(job | {"create_time": created - 100.0}))
        assert launcher.poll(handle).state is JobState.NODE_FAIL
        assert stranger.poll() is None
        stranger.kill()


def forge(handle: JobHandle, **changes: object) -> None:
    (handle.job_dir / "job.json").write_text(json.dumps(read_job(handle) | changes))


def test_a_job_of_before_the_restart_is_gone_whatever_has_its_number(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    handle = launcher.submit(python_job(tmp_path / "job", ""))
    wait_for_end(launcher, handle)
    me = {"pid": os.getpid(), "create_time": psutil.Process().create_time()}
    forge(handle, state="RUNNING", ended_at=None, exit_code=None, **me)
    assert launcher.poll(handle).state is JobState.RUNNING
    forge(handle, boot_id="another")
    status = launcher.poll(handle)
    assert (status.state, status.reason) == (JobState.NODE_FAIL, "the machine was restarted")
    assert read_job(handle)["state"] == "NODE_FAIL"


def test_a_job_of_another_machine_is_left_alone_until_that_is_said_to_be_gone(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    """The run directory is shared; the other machine's processes and its locks cannot be seen."""
    handle, pids = start_pair(launcher, tmp_path)
    supervisor = supervisor_of(handle)
    record = read_job(handle)
    forge(handle, node="elsewhere", pid=1, create_time=0.0)
    spec = python_job(tmp_path / "job", PAIR)
    for refused in (
        lambda: launcher.poll(handle),
        lambda: launcher.cancel(handle),
        lambda: launcher.submit(spec),
    ):
        with pytest.raises(LaunchError, match=r"was started on elsewhere and may still run there"):
            refused()
    assert all(is_running(pid) for pid in pids)
    assert not (handle.job_dir / "cancel.json").exists()

    supervisor.kill()  # Here, it stands for the other machine.
    wait_until(lambda: not is_running(supervisor.pid), "the supervisor to end")
    (handle.job_dir / "node-is-gone").touch()
    status = launcher.poll(handle)
    assert status.state is JobState.NODE_FAIL
    assert status.reason == "elsewhere is gone for good, says node-is-gone"
    assert status.nodes == ("elsewhere",)
    assert record["node"] == os.uname().nodename


def test_a_job_of_another_machine_that_has_ended_is_as_good_as_any(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    handle = launcher.submit(python_job(tmp_path / "job", ""))
    wait_for_end(launcher, handle)
    forge(handle, node="elsewhere", boot_id="another")
    assert launcher.poll(handle).state is JobState.COMPLETED
    assert launcher.submit(python_job(tmp_path / "job", "")) == handle
    launcher.cancel(handle)


def test_low_priority(launcher: LocalLauncher, tmp_path: Path) -> None:
    code = "import os; print(os.nice(0))"
    here = os.nice(0)
    for low_priority, niceness in [(False, here), (True, min(here + 10, 19))]:
        spec = python_job(tmp_path / f"job-{low_priority}", code)
        handle = launcher.submit(dataclasses.replace(spec, low_priority=low_priority))
        wait_for_end(launcher, handle)
        assert log_text(launcher, handle) == f"{niceness}\n"


def test_exit_code_is_kept_when_the_submitter_ignores_its_children(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        handle = launcher.submit(python_job(tmp_path / "job", "import sys; sys.exit(5)"))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert wait_for_end(launcher, handle).exit_code == 5


def test_job_runs_where_it_was_submitted(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where folders are named like Overland's packages, and with a relative job_dir."""
    for name in ("configs", "infra"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    handle = launcher.submit(python_job(Path("job"), "import os; print(os.getcwd())"))
    wait_for_end(launcher, handle)
    assert handle.job_dir == tmp_path / "job"
    assert log_text(launcher, handle) == f"{tmp_path}\n"


def test_processes_carry_the_job_id(launcher: LocalLauncher, tmp_path: Path) -> None:
    handle, pids = start_pair(launcher, tmp_path)
    assert {process.pid for process in live_processes_of_job(handle.job_id)} == set(pids)
    environment = psutil.Process(pids[0]).environ()
    assert environment[JOB_ID_VARIABLE] == handle.job_id
    assert environment["OVERLAND_JOB_KEY"] == handle.key
    launcher.cancel(handle, grace_s=0.0)
    assert live_processes_of_job(handle.job_id) == []


def test_submission_that_was_cut_short_is_taken_over(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    """A supervisor that died before it recorded the job leaves a lock file and some log."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.lock").touch()
    (tmp_path / "job" / "launcher.log").write_text("earlier\n")
    assert launcher.find(tmp_path / "job") is None
    handle = launcher.submit(python_job(tmp_path / "job", "print('now')"))
    assert wait_for_end(launcher, handle).state is JobState.COMPLETED
    assert log_text(launcher, handle) == "earlier\nnow\n"


@pytest.mark.slow
def test_ranks_do_not_outlive_a_killed_supervisor(launcher: LocalLauncher, tmp_path: Path) -> None:
    """The kernel ends them: nobody needs to poll."""
    spec = JobSpec(
        key="run/attempts/001",
        name="train",
        argv=("-c", PAIR.replace("os.fork()", "1"), str(tmp_path / "pids")),
        job_dir=tmp_path / "job",
        environment={"OMP_NUM_THREADS": "1"},
        distributed=True,
        processes_per_node=2,
    )
    handle = launcher.submit(spec)
    pids = wait_for_pids(tmp_path / "pids", 2)
    supervisor_of(handle).kill()
    wait_until(lambda: not any(is_running(pid) for pid in pids), "the ranks to end")
    assert wait_for_end(launcher, handle).state is JobState.NODE_FAIL


# --- what cannot be done --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 2}, "wants 2 nodes; the local launcher has 1"),
        ({"processes_per_node": 0}, "wants 0 processes"),
        ({"argv": ()}, "names no program"),
        ({"argv": ("true", "a\0b")}, "NUL character"),
        ({"exclude_nodes": (os.uname().nodename,)}, "the local launcher's only node"),
        (
            {"dependency": "afterok:7"},
            "waits for 'afterok:7'; the local launcher starts jobs at once",
        ),
        ({"need_nodes": ("elsewhere",)}, "needs elsewhere; the local launcher has"),
    ],
)
def test_impossible_job_is_refused(
    launcher: LocalLauncher, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    spec = dataclasses.replace(python_job(tmp_path / "job", ""), **change)
    with pytest.raises(LaunchError, match=message):
        launcher.submit(spec)
    assert not (tmp_path / "job").exists()


def test_job_dir_that_cannot_be_made(launcher: LocalLauncher, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match=r"cannot be read: .*Not a directory"):
        launcher.submit(python_job(tmp_path / "file" / "job", ""))


def test_supervisor_that_cannot_start_is_quoted(launcher: LocalLauncher, tmp_path: Path) -> None:
    (tmp_path / "job" / "job.lock").mkdir(parents=True)
    with pytest.raises(LaunchError, match=r"its supervisor ended with 1: (.|\n)*IsADirectoryError"):
        launcher.submit(python_job(tmp_path / "job", ""))
    assert launcher.find(tmp_path / "job") is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"state": "ASLEEP", "argv": []}', "\xff"])
def test_record_that_is_none(launcher: LocalLauncher, tmp_path: Path, content: str) -> None:
    (tmp_path / "job.json").write_text(content, encoding="latin-1")
    with pytest.raises(LaunchError, match=r"job\.json (is not a job's record|cannot be read)"):
        launcher.find(tmp_path)


def test_handle_of_an_earlier_job_is_refused(launcher: LocalLauncher, tmp_path: Path) -> None:
    handle = launcher.submit(python_job(tmp_path / "job", ""))
    wait_for_end(launcher, handle)
    with pytest.raises(LaunchError, match="submitted later than 0123"):
        launcher.poll(dataclasses.replace(handle, job_id="0123"))


def test_cordon_is_refused(launcher: LocalLauncher) -> None:
    (node,) = launcher.nodes()
    with pytest.raises(LaunchError, match="one machine only"):
        launcher.cordon(node, "ECC errors")


def test_supervisor_imports_nothing_heavy() -> None:
    code = "import infra.launch.supervisor, sys; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=True)
    modules = set(output.stdout.decode().split())
    assert "psutil" in modules
    assert modules.isdisjoint({"torch", "pydantic", "prefect", "numpy", "mlflow", "asyncio"})
