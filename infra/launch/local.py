"""Jobs as processes on this machine, without a scheduler.

Each job has a supervisor process (:mod:`infra.launch.supervisor`) that goes on when the flow that
submitted the job is killed. Everything about a job is in its job_dir (:mod:`infra.launch.record`);
the launcher itself keeps nothing in memory.

A run directory may be on a file system that several machines share. What runs can only be seen on
its own machine, so a job that another one started is refused until it has ended.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from configs.errors import LaunchError
from configs.files import file_lock, write_json
from configs.progress import progress_folder
from infra.launch import torchrun
from infra.launch.base import JobHandle, JobSpec, JobState, JobStatus
from infra.launch.processes import boot_id, end_processes, find_process, live_processes_of_job
from infra.launch.record import (
    JobFiles,
    JobRecord,
    read_cancel_grace_s,
    read_record,
    write_record,
)
from infra.launch.stacks import request_stacks
from infra.launch.torchrun import AGENT_MODULE

_SUBMIT_TIMEOUT_S = 60.0
_KILL_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 0.02
_LOG_TAIL_BYTES = 2000


class LocalLauncher:
    """The launcher for one machine."""

    def submit(self, spec: JobSpec) -> JobHandle:
        """Start the job, or find the one that was already submitted with this key in this job_dir."""
        _check(spec)
        files = JobFiles(spec.job_dir.absolute())
        record = read_record(files) or _start(spec, files)
        _check_node(files, record)
        if record.key != spec.key:
            raise LaunchError(
                f"{files.job_dir} holds the job {record.key!r}; {spec.key!r} needs its own folder"
            )
        return record.handle(files.job_dir)

    def find(self, job_dir: Path) -> JobHandle | None:
        """The job that was submitted with this folder, running or ended; None if there was none."""
        files = JobFiles(job_dir.absolute())
        record = read_record(files)
        return record.handle(files.job_dir) if record is not None else None

    def poll(self, handle: JobHandle) -> JobStatus:
        """State as of now; ends what a dead supervisor has left behind."""
        files = JobFiles(handle.job_dir)
        record = _read(handle)
        _check_node(files, record)
        if not record.state.final and (reason := _why_gone(files, record)):
            record = _settle(files, record, reason)
        return record.status()

    def cancel(self, handle: JobHandle, *, grace_s: float = 10.0) -> None:
        """End the job: SIGTERM to all its processes, SIGKILL after `grace_s`. Returns when it has
        ended; does nothing when it already had."""
        record = _read(handle)
        if record.state.final:
            return
        files = JobFiles(handle.job_dir)
        _check_node(files, record)
        with suppress(OSError):  # The disk is full: then the signal alone must do.
            write_json(files.cancel, {"grace_s": grace_s, "requested_at": time.time()})
        _signal_supervisor(record, signal.SIGTERM)
        if self._wait_for_end(handle, grace_s + _KILL_TIMEOUT_S):
            return
        _signal_supervisor(record, signal.SIGKILL)
        if not self._wait_for_end(handle, _KILL_TIMEOUT_S):
            raise LaunchError(f"job {handle.key!r} in {handle.job_dir} cannot be ended")

    def stacks(self, handle: JobHandle, *, timeout_s: float) -> list[Path]:
        """What the ranks are doing, in a file each, as far as that is known after `timeout_s`."""
        record = _read(handle)
        if record.state.final or AGENT_MODULE not in record.argv:
            return []
        _check_node(JobFiles(handle.job_dir), record)
        try:
            return request_stacks(handle.job_dir, [record.node], timeout_s=timeout_s)
        except OSError as error:
            raise LaunchError(f"the stacks of job {handle.key!r} cannot be had: {error}") from error

    def logs(self, handle: JobHandle) -> list[Path]:
        """Files with the launcher's and the program's output."""
        log = JobFiles(handle.job_dir).log
        return [log] if log.is_file() else []

    def nodes(self, *, also_down: bool = False) -> list[str]:
        """Names of the nodes that can run jobs."""
        del also_down
        return [os.uname().nodename]

    def lost_nodes(self) -> list[str]:
        """None: without this one nobody would ask."""
        return []

    def cordon(self, node: str, reason: str) -> None:
        """Refused: there is no other node for later jobs."""
        raise LaunchError(
            f"node {node!r} cannot be taken out of service ({reason}): the local launcher has one "
            "machine only; repair it, or use a cluster's launcher"
        )

    def _wait_for_end(self, handle: JobHandle, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self.poll(handle).state.final:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_INTERVAL_S)
        return True


def _check(spec: JobSpec) -> None:
    """Refuse what one machine cannot run."""
    node = os.uname().nodename
    if spec.nodes != 1:
        raise LaunchError(f"job {spec.key!r} wants {spec.nodes} nodes; the local launcher has 1")
    if node in spec.exclude_nodes:
        raise LaunchError(f"job {spec.key!r} excludes {node!r}, the local launcher's only node")
    if set(spec.need_nodes) - {node}:
        needed = ", ".join(spec.need_nodes)
        raise LaunchError(f"job {spec.key!r} needs {needed}; the local launcher has {node!r} only")
    if spec.dependency:
        raise LaunchError(
            f"job {spec.key!r} waits for {spec.dependency!r}; the local launcher starts jobs at once"
        )
    if not spec.argv or not all(spec.argv[:1]):
        raise LaunchError(f"job {spec.key!r} names no program: argv must not be empty")
    if spec.processes_per_node < 1:
        raise LaunchError(
            f"job {spec.key!r} wants {spec.processes_per_node} processes; at least 1 is right"
        )
    texts = [spec.key, spec.name, *spec.argv, *spec.environment, *spec.environment.values()]
    if any("\0" in text for text in texts):
        raise LaunchError(f"job {spec.key!r} has a NUL character in an argument or variable")


def _start(spec: JobSpec, files: JobFiles) -> JobRecord:
    """Have a supervisor start the job; returns what it (or one that was faster) recorded."""
    try:
        files.job_dir.mkdir(parents=True, exist_ok=True)
        with open(files.log, "ab") as log:
            log_start = log.tell()
            process = subprocess.run(
                _supervisor_command(spec, files),
                env=_environment(spec),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                timeout=_SUBMIT_TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        outcome = f"did not start within {_SUBMIT_TIMEOUT_S:g} s"
    except (OSError, ValueError) as error:
        raise LaunchError(f"job {spec.key!r} cannot be started: {error}") from error
    else:
        outcome = f"ended with {process.returncode}"
    record = read_record(files)
    if record is None:
        output = _tail(files.log, log_start)
        raise LaunchError(f"job {spec.key!r} was not started: its supervisor {outcome}: {output}")
    return record


def _supervisor_command(spec: JobSpec, files: JobFiles) -> list[str]:
    command = [sys.executable, "-P", "-m", "infra.launch.supervisor"]
    command += [f"--job-dir={files.job_dir}", f"--key={spec.key}", f"--name={spec.name}"]
    if spec.time_limit_s is not None:
        command.append(f"--time-limit-s={spec.time_limit_s}")
    command.append(f"--grace-s={spec.grace_s}")
    if spec.low_priority:
        command.append("--low-priority")
    argv = spec.argv
    if spec.distributed:
        argv = torchrun.single_node_command(spec, files.job_dir)
    return [*command, "--", *argv]


def _environment(spec: JobSpec) -> dict[str, str]:
    defaults = torchrun.ENVIRONMENT_DEFAULTS if spec.distributed else {}
    return {**defaults, **os.environ, **spec.environment}


def _tail(path: Path, start: int) -> str:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()


def _read(handle: JobHandle) -> JobRecord:
    record = read_record(JobFiles(handle.job_dir))
    if record is None:
        raise LaunchError(f"there is no job in {handle.job_dir}: its job.json is missing")
    if record.job_id != handle.job_id:
        raise LaunchError(
            f"{handle.job_dir} holds job {record.job_id}, submitted later than {handle.job_id}"
        )
    return record


def _check_node(files: JobFiles, record: JobRecord) -> None:
    """Refuse a job that may still run where this machine cannot see it."""
    node = os.uname().nodename
    if record.state.final or record.node == node or files.node_is_gone.exists():
        return
    raise LaunchError(
        f"job {record.key!r} was started on {record.node} and may still run there, which {node} "
        f"cannot see: go on from {record.node}; if that machine is gone for good, say so with "
        f"`touch {files.node_is_gone}`"
    )


def _why_gone(files: JobFiles, record: JobRecord) -> str:
    """Why nobody can see to the job's end any more; empty while its supervisor lives."""
    if record.node != os.uname().nodename:
        return f"{record.node} is gone for good, says {files.node_is_gone.name}"
    if record.boot_id not in ("", boot_id()):
        return "the machine was restarted"
    if find_process(record.pid, record.create_time) is None:
        return f"supervisor (pid {record.pid}) is gone without a record of the job's end"
    return ""


def _settle(files: JobFiles, record: JobRecord, reason: str) -> JobRecord:
    """Record the end of a job whose supervisor is gone, after ending what is left of it."""
    with file_lock(files.lock, blocking=False) as locked:
        current = read_record(files) or record
        if not locked or current.state.final:
            # Locked: another poller does the same now, or the supervisor lives after all (the
            # system clock was set, and creation times with it).
            return current
        left = end_processes(
            lambda: live_processes_of_job(record.job_id), grace_s=0.0, limit_s=_KILL_TIMEOUT_S
        )
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            raise LaunchError(f"job {record.key!r} has processes that cannot be killed: {pids}")
        shutil.rmtree(progress_folder(record.job_id, files.job_dir), ignore_errors=True)
        cancelled = read_cancel_grace_s(files) is not None
        settled = dataclasses.replace(
            current,
            state=JobState.CANCELLED if cancelled else JobState.NODE_FAIL,
            ended_at=time.time(),
            reason=reason,
        )
        try:
            write_record(files, settled)
        except OSError as error:
            raise LaunchError(
                f"the end of job {record.key!r} cannot be recorded: {error}"
            ) from error
        return settled


def _signal_supervisor(record: JobRecord, number: signal.Signals) -> None:
    """Speeds it up: the supervisor also looks for the request by itself, where it could be written."""
    process = find_process(record.pid, record.create_time)
    if process is not None:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return
