"""The launcher seam: what every place that runs jobs can do.

A job is submitted once. Its key says what it is for (run, stage, attempt or shard); before a
launcher submits, it looks for a job with that key, so a flow that was killed at any moment and
started again finds its job instead of starting a second one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class JobState(StrEnum):
    """Where a job stands. The last seven are final."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"

    @property
    def final(self) -> bool:
        """Whether the job has ended."""
        return self not in (JobState.PENDING, JobState.RUNNING)


@dataclass(frozen=True)
class JobSpec:
    """What to run, and on what."""

    key: str
    """Unique for the work, not for the submission: RUN_DIR-hash/attempts/003."""
    name: str
    """For people: squeue, ps, logs."""
    argv: tuple[str, ...]
    """Program and arguments; never a shell string. For a distributed job: the arguments after
    torchrun's own, like ("-m", "tasks.train.job", ...)."""
    job_dir: Path
    """The launcher's files of this job: job.json (record), launcher.log (output)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the submitter's environment."""
    distributed: bool = False
    """Start under torchrun, `processes_per_node` ranks on each of `nodes`, no restarts of its own."""
    each_node: bool = False
    """Start the program itself once on each of `nodes`, without torchrun; one that fails, or a node that
    is lost, does not end the others."""
    nodes: int = 1
    more_nodes: int = 0
    """With each_node: so many more, if they are free when the job starts."""
    processes_per_node: int = 1
    gpus_per_node: int = 0
    time_limit_s: float | None = None
    """The launcher ends the job (state TIMEOUT) after this long."""
    low_priority: bool = False
    """Give way to other jobs on the machine: `nice` locally, a low-priority queue on a cluster."""
    cpu_only: bool = False
    """Needs no GPU, and may run on nodes that have none."""
    grace_s: float = 10.0
    """From SIGTERM to SIGKILL when the job is ended for another reason than `cancel`: its time limit,
    or a machine that goes down."""
    exclude_nodes: tuple[str, ...] = ()
    need_nodes: tuple[str, ...] = ()
    """These must be among the job's nodes."""
    dependency: str | None = None
    """Jobs of others that must come first, in the scheduler's words, like afterok:17."""


@dataclass(frozen=True)
class JobHandle:
    """A submitted job, as a launcher can find it again."""

    key: str
    job_id: str
    job_dir: Path
    submitted_at: float


@dataclass(frozen=True)
class JobStatus:
    """A job's state as of now."""

    state: JobState
    exit_code: int | None = None
    """Exit code of the program, when it exited."""
    signal: int | None = None
    """Number of the signal that ended the program, when one did."""
    started_at: float | None = None
    ended_at: float | None = None
    nodes: tuple[str, ...] = ()
    reason: str = ""
    """The launcher's own words, like `time limit of 600 s` or `supervisor is gone`."""
    suspended: bool = False
    """The scheduler has stopped the running job for a while: its silence is no hang."""
    stale: bool = False
    """The scheduler does not answer: this is what it said last."""


class Launcher(Protocol):
    """Submits, watches and ends jobs. Every method raises LaunchError when it cannot do its work."""

    def submit(self, spec: JobSpec) -> JobHandle:
        """Start the job, or find the one that was already submitted with this key in this job_dir."""

    def find(self, job_dir: Path) -> JobHandle | None:
        """The job that was submitted with this folder, running or ended; None if there was none."""

    def poll(self, handle: JobHandle) -> JobStatus:
        """State as of now."""

    def cancel(self, handle: JobHandle, *, grace_s: float = 10.0) -> None:
        """End the job: SIGTERM to all its processes, SIGKILL after `grace_s`. Returns when it has
        ended; does nothing when it already had."""

    def stacks(self, handle: JobHandle, *, timeout_s: float) -> list[Path]:
        """Have the ranks of a running distributed job looked at, from outside, without stopping them.

        Asks the agent on each of the job's nodes, waits until all have answered or `timeout_s` is over,
        and returns the files (configs.stacks.RankStack) that are there by then: none of a rank whose
        node is silent, one without a stack of a process that could not be read. Empty for a job that
        has ended or is not distributed. A rank that does not answer raises nothing."""

    def logs(self, handle: JobHandle) -> list[Path]:
        """Files with the launcher's and the program's output."""

    def nodes(self, *, also_down: bool = False) -> list[str]:
        """Names of the nodes that can run jobs; `also_down`: of those too that cannot at the moment."""

    def lost_nodes(self) -> list[str]:
        """Names of the nodes that have failed: not those that somebody keeps from jobs for a while."""

    def cordon(self, node: str, reason: str) -> None:
        """Take a node out of service for later jobs."""
