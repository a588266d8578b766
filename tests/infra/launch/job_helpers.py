"""What the launcher tests share: small real programs, and waiting with a limit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from infra.launch.base import JobHandle, JobSpec, JobStatus, Launcher

WAIT_LIMIT_S = 60.0


def python_job(job_dir: Path, code: str, *arguments: str, key: str = "run/attempts/001") -> JobSpec:
    """A job that runs `code` in a bare interpreter."""
    argv = (sys.executable, "-I", "-S", "-c", code, *arguments)
    return JobSpec(key=key, name="test", argv=argv, job_dir=job_dir)


def wait_until(condition: Callable[[], bool], what: str, *, limit_s: float = WAIT_LIMIT_S) -> None:
    """Wait for `condition`; fail with `what` when it takes too long."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.01)


def wait_for_end(launcher: Launcher, handle: JobHandle) -> JobStatus:
    """Poll until the job has ended."""
    wait_until(lambda: launcher.poll(handle).state.final, f"the end of job {handle.key}")
    return launcher.poll(handle)


def wait_for_pids(folder: Path, count: int) -> list[int]:
    """Wait until `count` processes have each made a file named by their pid in `folder`."""

    def pids() -> list[int]:
        return [int(path.name) for path in folder.iterdir()] if folder.is_dir() else []

    wait_until(lambda: len(pids()) >= count, f"{count} processes in {folder}")
    return pids()


def is_running(pid: int) -> bool:
    """Whether the process can still do anything."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def log_text(launcher: Launcher, handle: JobHandle) -> str:
    """All output of the job."""
    return "".join(path.read_text() for path in launcher.logs(handle))
