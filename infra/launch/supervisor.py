"""The process beside each local job: starts its program once, sees to its end, records it.

`python -m infra.launch.supervisor --job-dir DIR --key KEY --name NAME -- PROGRAM ARGUMENTS...`
returns as soon as the job is on record, started now or before by another call; a second process
then holds DIR/job.lock until nothing of the job runs any more. It does not depend on whoever
submitted the job. Files: see :mod:`infra.launch.record`.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil

from configs.errors import LaunchError
from configs.files import file_lock
from configs.progress import progress_folder
from infra.launch.base import JobState
from infra.launch.leash import die_with_parent
from infra.launch.processes import (
    JOB_DIR_VARIABLE,
    JOB_ID_VARIABLE,
    JOB_KEY_VARIABLE,
    become_subreaper,
    boot_id,
    end_processes,
    live_descendants,
)
from infra.launch.record import CancelRequests, JobFiles, JobRecord, write_record

LOW_PRIORITY_NICENESS = 10
EXIT_CODE_CANNOT_START = 127

_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}
WATCHED_SIGNALS = {*_STOP_SIGNALS, signal.SIGHUP, signal.SIGCHLD}
_DEFAULT_GRACE_S = 10.0
_LEFTOVER_GRACE_S = 2.0
_CANCEL_CHECK_INTERVAL_S = 1.0
_STORAGE_LIMIT_S = 1800.0
"""A job that cannot be asked to end for so long, and cannot save either, is of no use."""
_CLAIM_RETRY_S = 0.01
_END_RECORD_TIMEOUT_S = 30.0
_END_RECORD_RETRY_S = 0.5


@dataclass(frozen=True)
class Order:
    """What the command line asks for."""

    files: JobFiles
    key: str
    name: str
    argv: tuple[str, ...]
    time_limit_s: float
    low_priority: bool
    grace_s: float


@dataclass(frozen=True)
class Stop:
    """Why and how the job is ended before its program ends by itself."""

    state: JobState
    reason: str
    grace_s: float


def main(arguments: list[str]) -> int:
    """Start the job unless it was started before; returns when it is on record."""
    # From before the job is on record, a signal waits until it is looked for.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED_SIGNALS)
    # A submitter that ignores SIGCHLD hands this down, and exit codes would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    order = parse_order(arguments)
    while not order.files.record.exists():
        with file_lock(order.files.lock, blocking=False) as locked:
            # Another supervisor may hold the lock (it records the job, or dies), or a poller
            # for a moment. With the lock, nobody else can be about to record the job.
            if locked and not order.files.record.exists():
                return fork_supervisor(order)
        time.sleep(_CLAIM_RETRY_S)
    return 0


def parse_order(arguments: list[str]) -> Order:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="infra.launch.supervisor")
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--time-limit-s", type=float, default=math.inf)
    parser.add_argument("--low-priority", action="store_true")
    parser.add_argument("--grace-s", type=float, default=_DEFAULT_GRACE_S)
    parser.add_argument("argv", nargs="+")
    options = parser.parse_args(arguments)
    return Order(
        files=JobFiles(options.job_dir),
        key=options.key,
        name=options.name,
        argv=tuple(options.argv),
        time_limit_s=options.time_limit_s,
        low_priority=options.low_priority,
        grace_s=options.grace_s,
    )


def fork_supervisor(order: Order) -> int:
    """Go on as a child that nobody waits for; returns in the parent when the job is on record.

    The lock belongs to both processes; it stays with the child when the parent ends.
    """
    read_end, write_end = os.pipe()
    if os.fork() != 0:
        os.close(write_end)
        return 0 if os.read(read_end, 1) else 1
    os.close(read_end)
    record = begin(order)
    os.write(write_end, b"+")
    os.close(write_end)
    write_end_record(order.files, run(order, record))
    return 0


def write_end_record(files: JobFiles, record: JobRecord) -> None:
    """Record the end; a full disk may have room again soon, as what filled it has ended."""
    deadline = time.monotonic() + _END_RECORD_TIMEOUT_S
    while True:
        try:
            return write_record(files, record)
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_END_RECORD_RETRY_S)


def begin(order: Order) -> JobRecord:
    """Put the job on record."""
    become_subreaper()
    record = JobRecord(
        key=order.key,
        job_id=uuid.uuid4().hex[:12],
        name=order.name,
        argv=order.argv,
        node=os.uname().nodename,
        pid=os.getpid(),
        create_time=psutil.Process().create_time(),
        started_at=time.time(),
        boot_id=boot_id(),
    )
    write_record(order.files, record)
    return record


def run(order: Order, record: JobRecord) -> JobRecord:
    """Run the program; returns how the job ended, when nothing of it runs any more."""
    try:
        program = start_program(order, record)
    except (OSError, subprocess.SubprocessError) as error:
        return _ended(record, JobState.FAILED, EXIT_CODE_CANNOT_START, f"cannot start: {error}")
    stop = watch(program, order)

    def find_live() -> list[psutil.Process]:
        return live_descendants() if reap_children(program) else []

    # Ask the kernel: a scan of /proc can miss a process that changes its parent meanwhile.
    while reap_children(program):
        end_processes(find_live, grace_s=stop.grace_s if stop else _LEFTOVER_GRACE_S)
    # The agent does it too, unless it was killed.
    shutil.rmtree(progress_folder(record.job_id, order.files.job_dir), ignore_errors=True)
    return_code = program.returncode
    if stop is not None:
        return _ended(record, stop.state, return_code, stop.reason)
    return _ended(record, JobState.FAILED if return_code else JobState.COMPLETED, return_code)


def start_program(order: Order, record: JobRecord) -> subprocess.Popen[bytes]:
    """Start the program in its own session, on a leash, with its output in the job's log."""
    supervisor_pid = os.getpid()

    def prepare() -> None:
        die_with_parent(supervisor_pid)
        if order.low_priority:
            os.nice(LOW_PRIORITY_NICENESS)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED_SIGNALS)

    return subprocess.Popen(
        order.argv,
        env={
            **os.environ,
            JOB_KEY_VARIABLE: record.key,
            JOB_ID_VARIABLE: record.job_id,
            JOB_DIR_VARIABLE: str(order.files.job_dir),
        },
        start_new_session=True,
        preexec_fn=prepare,
    )


def watch(program: subprocess.Popen[bytes], order: Order) -> Stop | None:
    """Wait until the program has ended (None) or must be ended."""
    deadline = time.monotonic() + order.time_limit_s
    requests = CancelRequests(order.files, limit_s=_STORAGE_LIMIT_S)
    received: int | None = None
    while True:
        reap_children(program)
        if program.returncode is not None:
            return None
        try:
            grace_s = requests.grace_s()
        except LaunchError as error:
            return Stop(JobState.FAILED, str(error), order.grace_s)
        if grace_s is not None:
            return Stop(JobState.CANCELLED, "cancelled", grace_s)
        if received in _STOP_SIGNALS:
            reason = f"the supervisor got {signal.Signals(received).name}"
            return Stop(JobState.CANCELLED, reason, order.grace_s)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            reason = f"time limit of {order.time_limit_s:g} s"
            return Stop(JobState.TIMEOUT, reason, order.grace_s)
        info = signal.sigtimedwait(WATCHED_SIGNALS, min(left_s, _CANCEL_CHECK_INTERVAL_S))
        received = info.si_signo if info is not None else None


def reap_children(program: subprocess.Popen[bytes]) -> bool:
    """Take in every child that has ended, adopted ones too; returns whether any is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        if pid == program.pid:
            program.returncode = os.waitstatus_to_exitcode(status)


def _ended(record: JobRecord, state: JobState, return_code: int, reason: str = "") -> JobRecord:
    return dataclasses.replace(
        record,
        state=state,
        exit_code=return_code if return_code >= 0 else None,
        signal=-return_code if return_code < 0 else None,
        ended_at=time.time(),
        reason=reason,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
