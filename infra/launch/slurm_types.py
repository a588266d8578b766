"""What is asked of Slurm and what it answers, whatever dialect the server speaks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

FINAL_STATES = frozenset(
    [
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "OUT_OF_MEMORY",
        "BOOT_FAIL",
        "DEADLINE",
        "REVOKED",
    ]
)
SUSPENDED = "SUSPENDED"
_STATES = FINAL_STATES | {"PENDING", "RUNNING", SUSPENDED}
_USABLE_NODE = {"IDLE", "ALLOCATED", "MIXED"}
_UNUSABLE_NODE = frozenset(
    [
        "DRAIN",
        "FAIL",
        "NOT_RESPONDING",
        "MAINTENANCE",
        "MAINT",
        "INVALID_REG",
        "REBOOT_REQUESTED",
    ]
)
_POWER = frozenset(["POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"])
_LOST_NODE = frozenset(["FAIL", "NOT_RESPONDING"])
_SAME_JOB_S = 3600.0
"""Numbers come back after weeks, or when slurmctld has lost its memory."""
_GROUP = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True)
class JobRequest:
    """A batch job to submit."""

    script: str
    name: str
    comment: str
    """By which it is found again."""
    folder: str
    output: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    nodes: int = 1
    cpus_per_node: int = 1
    gpus_per_node: int = 0
    gpu_type: str | None = None
    memory_per_node_mib: int | None = None
    time_limit_minutes: int | None = None
    warning_s: int | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    nice: int | None = None
    """What is taken off its priority."""
    constraints: str | None = None
    exclude_nodes: tuple[str, ...] = ()
    need_nodes: tuple[str, ...] = ()
    more_nodes: int = 0
    """Beside `nodes`, if they are free."""
    dependency: str | None = None
    """As for sbatch, like afterok:17."""
    survives_nodes: bool = False
    """Goes on when one of its nodes is lost."""

    @property
    def gres(self) -> str:
        """Like gpu:h100:8; empty without GPUs."""
        if not self.gpus_per_node:
            return ""
        kind = f"{self.gpu_type}:" if self.gpu_type else ""
        return f"gpu:{kind}{self.gpus_per_node}"


@dataclass(frozen=True)
class SlurmJob:
    """A job as the server knows it."""

    job_id: int
    comment: str
    state: str
    """Slurm's base state."""
    flags: frozenset[str]
    """COMPLETING, REQUEUED and so on."""
    reason: str
    nodes: tuple[str, ...]
    exit_code: int | None
    signal: int | None
    derived_exit_code: int | None
    """The worst of its steps."""
    restarts: int
    started_at: float | None
    ended_at: float | None
    partition: str = ""
    """Where it may run; several are separated by commas."""

    @property
    def final(self) -> bool:
        """Whether it has ended, and its nodes are free again."""
        return self.state in FINAL_STATES and "COMPLETING" not in self.flags


@dataclass(frozen=True)
class AccountedJob:
    """A job as slurmdbd remembers it, also long after slurmctld has forgotten it."""

    job: SlurmJob
    name: str
    submitted_at: float

    def is_the_one(self, *, comment: str, name: str, submitted_at: float) -> bool:
        """Whether it is this job, and not another one that had its number. Comments are kept only where
        the site wants it (AccountingStoreFlags=job_comment)."""
        if self.job.comment:
            return self.job.comment == comment
        return self.name == name and abs(self.submitted_at - submitted_at) < _SAME_JOB_S


@dataclass(frozen=True)
class SlurmNode:
    """A node as the server knows it."""

    name: str
    state: str
    flags: frozenset[str]
    reason: str
    partitions: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """Whether it can run jobs; one that saves power is woken by a job."""
        return self.state in _USABLE_NODE and not self.flags & _UNUSABLE_NODE

    @property
    def is_lost(self) -> bool:
        """Whether it has failed, unlike one that is drained, in maintenance, or saves power."""
        has_failed = self.state in ("DOWN", "ERROR", "FAIL") or bool(self.flags & _LOST_NODE)
        return has_failed and not self.flags & _POWER


def split_names(names: str | None) -> list[str]:
    """The partitions of an option like `a,b`."""
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def split_states(states: list[str]) -> tuple[str, frozenset[str]]:
    """The base state and the flags; v0.0.38 shows a flag in the state's place."""
    base = next((state for state in states if state in _STATES), "")
    return base or "RUNNING", frozenset(states) - {base}


def expand(names: str) -> tuple[str, ...]:
    """The single nodes of a list like `node[1-2,07-08],login`."""
    found: list[str] = []
    for item in _split(names):
        group = _GROUP.search(item)
        if group is None:
            found.append(item)
            continue
        before, after = item[: group.start()], item[group.end() :]
        for number in _numbers(group.group(1)):
            found += expand(before + number + after)
    return tuple(found)


def _split(names: str) -> list[str]:
    """At the commas outside of brackets."""
    items = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names)
    return [item.strip() for item in items if item.strip()]


def _numbers(ranges: str) -> list[str]:
    found: list[str] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        width = len(first)
        found += [f"{n:0{width}d}" for n in range(int(first), int(last or first) + 1)]
    return found
