"""Which Slurm jobs a run has had: none twice, and none that its flow has left behind."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from configs.rundir import RunDir
from infra.launch.slurm_record import COMMENT_PREFIX
from infra.launch.slurm_types import FINAL_STATES
from infra.slurm.cluster import LocalCluster

_LEAVING_LIMIT_S = 30.0
"""For nodes to clean up after a job that has ended."""
_PAUSE_S = 0.5


@dataclass(frozen=True)
class ClusterJob:
    """One job as squeue shows it."""

    job_id: int
    state: str
    reason: str
    key: str


def audit(cluster: LocalCluster, run: RunDir) -> dict[str, Any]:
    """Counts jobs that were submitted a second time under the same key, and jobs that are still there
    though their flow is done; the latter are ended."""
    deadline = time.monotonic() + _LEAVING_LIMIT_S
    jobs = jobs_of(cluster, run)
    while any(job.state == "COMPLETING" for job in jobs) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        jobs = jobs_of(cluster, run)
    orphans = [job for job in jobs if job.state not in FINAL_STATES]
    for job in orphans:
        cluster.command("scancel", str(job.job_id))
    return {
        "jobs": len(jobs),
        "duplicate_jobs": duplicates(jobs),
        "orphan_jobs": len(orphans),
    }


def duplicates(jobs: list[ClusterJob]) -> int:
    """Jobs beyond the first one of each key; a refused request is none."""
    counts = Counter(job.key for job in jobs if job.reason != "BadConstraints")
    return sum(count - 1 for count in counts.values())


def jobs_of(cluster: LocalCluster, run: RunDir) -> list[ClusterJob]:
    """All jobs of the run that slurmctld knows, by the keys in their comments."""
    out = cluster.command("squeue", "-h", "-a", "-t", "all", "-o", "%i|%T|%r|%k")
    found = []
    for line in out.splitlines():
        number, state, reason, comment = line.split("|", 3)
        prefix, _, rest = comment.partition(" ")
        key = rest.partition(" ")[2]
        if prefix == COMMENT_PREFIX and key.startswith(f"{run.path}/"):
            found.append(ClusterJob(int(number), state, reason, key))
    return found
