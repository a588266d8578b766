"""A small Slurm job on two nodes: whether they see what the login node sees, and what they are.

Its submission also shows whether the account, the QOS and the size of the request are taken.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from configs.errors import LaunchError
from configs.files import file_lock, write_text
from configs.schema import LauncherConfig
from infra.doctor import node as node_program
from infra.doctor.findings import Finding, failed, skipped, warning
from infra.doctor.judge_nodes import Answers, judge
from infra.doctor.storage import PREFIX, existing_parent
from infra.launch.base import JobHandle, JobSpec, JobState, JobStatus, Launcher
from infra.launch.slurm_site import slurm_launcher

JOB = "Slurm job"
_NODES = 2
_PATIENCE_S = 10.0
_ANSWER_LIMIT_S = 240.0
_END_LIMIT_S = 13.0
"""A job on its nodes is asked for so long, then Slurm is; less than what a check has to clean up."""
_POLL_S = 0.1
_LOG_CHARS = 300


@dataclass(frozen=True)
class NodeProbe:
    """What is asked of the nodes, and for how long the queue may keep the job."""

    launcher: LauncherConfig
    folder: Path
    """On the storage that is shared; need not exist."""
    queue_limit_s: float = 60.0
    snapshot_bytes: int | None = None
    """Of all processes on a node."""

    @property
    def limit_s(self) -> float:
        """How long the whole may take."""
        return self.queue_limit_s + _ANSWER_LIMIT_S + 60.0


def check_nodes(stop: threading.Event, probe: NodeProbe) -> list[Finding]:
    """Submit, wait, judge; the job and its folder are gone afterwards."""
    place = existing_parent(probe.folder)
    site = probe.launcher.slurm.model_copy(update={"patience_s": _PATIENCE_S})
    launcher = slurm_launcher(probe.launcher.model_copy(update={"slurm": site}))
    try:
        count = min(_NODES, len(launcher.nodes()))
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    except LaunchError as error:
        return [skipped(JOB, f"not submitted, as Slurm cannot be asked: {error}")]
    except OSError as error:
        return [skipped(JOB, f"not submitted, as {place} cannot be written: {error.strerror}")]
    try:
        if not count:
            return [skipped(JOB, "not submitted: no node of the partition can be used now")]
        write_text(folder / "hello", uuid.uuid4().hex)
        with file_lock(folder / "lock"):
            return _submit_and_judge(stop, probe, launcher, folder, count)
    finally:
        _remove(folder)


def _submit_and_judge(
    stop: threading.Event, probe: NodeProbe, launcher: Launcher, folder: Path, count: int
) -> list[Finding]:
    argv = (sys.executable, "-P", str(Path(node_program.__file__)), str(folder), str(count))
    spec = JobSpec(
        key=f"doctor/{folder.name}",
        name="overland-doctor",
        argv=argv,
        job_dir=folder / "job",
        nodes=count,
        each_node=True,
        time_limit_s=_ANSWER_LIMIT_S,
    )
    try:
        handle = launcher.submit(spec)
    except LaunchError as error:
        words = str(error).partition("was refused: ")[2] or str(error)
        return [failed(JOB, f"Slurm refuses it: {words}")]
    left: list[Finding] = []
    try:
        found = _watch(stop, probe, launcher, handle, folder, count)
    except LaunchError as error:
        found = [failed(JOB, str(error))]
    finally:
        left = _end(launcher, handle)
    return [*found, *left]


def _end(launcher: Launcher, handle: JobHandle) -> list[Finding]:
    """End the job; one that does not end in time is said, and costs nothing that was found."""
    problems: list[str] = []

    def cancel() -> None:
        try:
            launcher.cancel(handle, grace_s=1.0)
        except LaunchError as error:
            problems.append(str(error))

    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    thread.join(_END_LIMIT_S)
    if thread.is_alive():
        problems.append(f"it has not ended within {_END_LIMIT_S:g} s")
    return [
        warning(JOB, f"{words}; see to it with `scancel {handle.job_id}`") for words in problems[:1]
    ]


def _watch(
    stop: threading.Event,
    probe: NodeProbe,
    launcher: Launcher,
    handle: JobHandle,
    folder: Path,
    count: int,
) -> list[Finding]:
    job = _Job(stop, launcher, handle)
    if not job.wait(lambda: job.status.state is not JobState.PENDING, probe.queue_limit_s):
        why = job.status.reason or "no reason given"
        return [
            skipped(
                JOB,
                f"{handle.job_id} did not start within {probe.queue_limit_s:g} s ({why}): the nodes are "
                "not looked at; try again when the partition has room",
            )
        ]
    ready = job.wait(lambda: len(list(folder.glob("ready-*"))) >= count, node_program.PEER_LIMIT_S)
    went_at = time.time()
    write_text(folder / "go", "")
    clocks: dict[str, tuple[float, float]] = {}

    def all_clocks() -> bool:
        for path in folder.glob("clock-*"):
            name = path.name.removeprefix("clock-")
            if name not in clocks:
                clocks[name] = (json.loads(path.read_text())["time"], time.time())
        return len(clocks) >= count

    job.wait(all_clocks, node_program.PEER_LIMIT_S)
    job.wait(lambda: len(list(folder.glob("answer-*"))) >= count, _ANSWER_LIMIT_S)
    answers = [json.loads(path.read_text()) for path in sorted(folder.glob("answer-*"))]
    if not answers:
        return [failed(JOB, _why_silent(job.status, launcher, handle, ready))]
    return judge(
        Answers(
            job_id=handle.job_id,
            count=count,
            place=folder.parent,
            hello=(folder / "hello").read_text(),
            answers=answers,
            clocks={name: (went_at, seen_at, at) for name, (at, seen_at) in clocks.items()},
            gpus_needed=probe.launcher.processes_per_node
            if probe.launcher.slurm.gpus_per_node
            else None,
            snapshot_bytes=probe.snapshot_bytes,
            network_interface=probe.launcher.slurm.network_interface,
        )
    )


class _Job:
    """Waits for what a running job does, as long as it runs and nobody says stop."""

    def __init__(self, stop: threading.Event, launcher: Launcher, handle: JobHandle) -> None:
        self._stop, self._launcher, self._handle = stop, launcher, handle
        self.status: JobStatus = launcher.poll(handle)

    def wait(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Whether it has come about in time."""
        deadline = time.monotonic() + limit_s
        while True:
            self.status = self._launcher.poll(self._handle)
            if condition():
                return True
            if self.status.state.final or time.monotonic() >= deadline:
                return condition()
            if self._stop.wait(_POLL_S):
                raise LaunchError("it was ended before it had answered")


def _why_silent(status: JobStatus, launcher: Launcher, handle: JobHandle, ready: bool) -> str:
    """For a job that ran and left nothing that can be seen here."""
    logs = [path.read_text(errors="replace") for path in launcher.logs(handle)]
    words = " ".join(" ".join(logs).split())[-_LOG_CHARS:]
    if ready:
        return f"its nodes were there, but have not answered in time: {words or 'no output'}"
    return (
        f"it is {status.state} on {', '.join(status.nodes) or 'no node'}, but nothing of it is seen here: "
        f"the run folder and Python's environment must be on storage that all nodes share, and that the job's "
        f"user can write to "
        f"({words or 'no output'})"
    )


def _remove(folder: Path) -> None:
    """The nodes' last files may still be on their way."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(_POLL_S)
    shutil.rmtree(folder)
