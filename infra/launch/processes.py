"""Finding and ending all processes of a job.

Two nets catch them. A live supervisor is the "subreaper" of its job: whatever is started below it
stays its descendant, daemons included. When the supervisor is gone, the job's processes are known
by OVERLAND_JOB_ID in their environment. A job that is submitted from within a job belongs to it,
and ends with it.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from pathlib import Path

import psutil

JOB_KEY_VARIABLE = "OVERLAND_JOB_KEY"
JOB_ID_VARIABLE = "OVERLAND_JOB_ID"
JOB_DIR_VARIABLE = "OVERLAND_JOB_DIR"

_PR_SET_CHILD_SUBREAPER = 36
_CREATE_TIME_TOLERANCE_S = 1.0
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1


def become_subreaper() -> None:
    """Make orphaned descendants children of this process rather than of init."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def boot_id() -> str:
    """Names this boot of this machine; another after each restart."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def find_process(pid: int, create_time: float) -> psutil.Process | None:
    """The live process `pid`, if it is the one that was created then.

    The tolerance is for the system clock, from which creation times are computed; no number is
    used again that soon.
    """
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - create_time) < _CREATE_TIME_TOLERANCE_S
        return process if same and _is_alive(process) else None
    except psutil.NoSuchProcess:
        return None


def live_descendants() -> list[psutil.Process]:
    """All processes below this one that have not ended."""
    return [p for p in psutil.Process().children(recursive=True) if _is_alive(p)]


def live_processes_of_job(job_id: str) -> list[psutil.Process]:
    """All of the user's processes that carry this job's id in their environment."""
    return [p for p in psutil.process_iter() if _job_id_of(p) == job_id and _is_alive(p)]


def end_processes(
    find_live: Callable[[], list[psutil.Process]], grace_s: float, limit_s: float = math.inf
) -> list[psutil.Process]:
    """SIGTERM what `find_live` finds, SIGKILL what is left after `grace_s`.

    Returns when nothing is left, or after `limit_s` what is left.
    """
    start = time.monotonic()
    for process in find_live():
        _send(process.terminate)
    pause_s = _FIRST_PAUSE_S
    while live := find_live():
        elapsed_s = time.monotonic() - start
        if elapsed_s >= limit_s:
            return live
        if elapsed_s >= grace_s:
            for process in live:
                _send(process.kill)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return []


def _is_alive(process: psutil.Process) -> bool:
    """Whether it can still do anything: a zombie cannot, though nobody may ever reap it."""
    try:
        return bool(process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return False


def _job_id_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(JOB_ID_VARIABLE)
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return None


def _send(signal_it: Callable[[], None]) -> None:
    """psutil checks that the number still means the same process."""
    try:
        signal_it()
    except psutil.NoSuchProcess:
        return
