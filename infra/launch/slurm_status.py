"""How a job stands, by what Slurm says and what the job's nodes have written down.

Slurm's word decides what happened to the job from outside; the nodes know exit codes and signals of the
program itself, and times to better than a second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from configs.errors import EXIT_CONTINUE
from infra.launch.base import JobState
from infra.launch.slurm_node import EXIT_NOT_MINE, EXIT_REQUEUED
from infra.launch.slurm_record import Ended, NodeRecord
from infra.launch.slurm_types import SlurmJob, SlurmNode, split_names

_OOM_EXIT_CODE = 253
"""Of srun, when memory was short on a node; Slurm calls such a job FAILED."""

_STATES = {
    "CANCELLED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "NODE_FAIL": JobState.NODE_FAIL,
    "BOOT_FAIL": JobState.NODE_FAIL,
    "PREEMPTED": JobState.PREEMPTED,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
}
_REASONS = {
    JobState.CANCELLED: "cancelled from outside, with scancel or by an administrator",
    JobState.TIMEOUT: "the job's time limit in Slurm",
    JobState.NODE_FAIL: "a node of the job failed",
    JobState.PREEMPTED: "Slurm gave its nodes to another job",
    JobState.OUT_OF_MEMORY: "a process used more memory than the job has on its node",
}
NEVER_SATISFIED = "DependencyNeverSatisfied"
NOTHING_SEEN = "NothingSeen"
_LIMITS = re.compile(
    r"Partition(?!Down|Inactive)\w+|(QOS|Assoc)(Max\w+Per(Job|Node)(Limit)?|Min\w+)|MaxMemPerLimit"
)
"""Why a job never starts that asks for more than its partition, QOS or account allows one job."""
_NODE_LIMITS = ("PartitionNodeLimit", "PartitionConfig")
"""Said also of a job that waits for nodes that are down or drained."""
_LAUNCH_FAILURE = "JobLaunchFailure"
_CANNOT_WRITE_SIGNAL = 53
"""Slurm's own number for a job whose output file its node could not open."""
_BY_ITSELF = {JobState.COMPLETED, JobState.FAILED}


def ended_as(
    job: SlurmJob,
    nodes: Sequence[NodeRecord],
    *,
    cancelled: bool,
    unseen: bool = False,
    nodes_lost: bool = True,
) -> Ended:
    """How a job ended that Slurm calls final; `cancelled`: we have asked for its end; `unseen`: nothing of
    it is on the storage here; `nodes_lost`: as for :func:`requeued`."""
    state = _STATES.get(job.state)
    if state is None and _OOM_EXIT_CODE in (job.exit_code, job.derived_exit_code):
        state = JobState.OUT_OF_MEMORY
    reason = _REASONS[state] if state is not None else ""
    if cancelled and state in (None, JobState.CANCELLED):
        state, reason = JobState.CANCELLED, "cancelled"
    elif state is not JobState.CANCELLED and _was_requeued(job, nodes):
        # What the nodes have left is of the first time.
        again = requeued(job, nodes, nodes_lost=nodes_lost)
        return again.model_copy(update={"started_at": _started_at(job, nodes)})
    elif job.exit_code == EXIT_NOT_MINE and not nodes:
        state, reason = JobState.NODE_FAIL, "another job had its folder"
    elif state is None and unseen and _is_storages_fault(job):
        return nothing_seen(job)
    elif state is None and job.reason == _LAUNCH_FAILURE and not nodes:
        return not_launched(job, f"Slurm says {_LAUNCH_FAILURE}")
    ended = by_nodes(nodes)
    if state is None and ended is not None and ended.state not in _BY_ITSELF:
        # Like its own time limit, or a signal to one node's processes.
        state, reason = ended.state, ended.reason
    if state is None:
        state = JobState.COMPLETED if job.state == "COMPLETED" else JobState.FAILED
        reason = (ended.reason if ended else "") or _launch_failure(job)
    exit_code, signal = (ended.exit_code, ended.signal) if ended else (job.exit_code, job.signal)
    if state is JobState.FAILED and exit_code in (0, None) and not signal:
        exit_code, signal = _plain_end(job)
    return Ended(
        state=state,
        exit_code=None if signal else exit_code,
        signal=signal,
        started_at=_started_at(job, nodes),
        ended_at=max([r.ended_at for r in nodes if r.ended_at], default=job.ended_at),
        nodes=job.nodes,
        reason=reason,
    )


def forgotten(nodes: Sequence[NodeRecord], *, cancelled: bool) -> Ended:
    """How a job ended that Slurm knows no more, by what its nodes have left."""
    ended = by_nodes(nodes)
    if ended is None or not all(record.state.final for record in nodes):
        state = JobState.CANCELLED if cancelled else JobState.NODE_FAIL
        return Ended(
            state=state,
            started_at=min([r.started_at for r in nodes], default=None),
            nodes=tuple(r.node for r in nodes),
            reason="Slurm does not know the job any more, and it has left no word about its end",
        )
    if ended.state is JobState.CANCELLED and not cancelled:
        # A controller that has lost its memory ends the jobs that it finds on the nodes.
        reason = "Slurm does not know the job any more and has ended its processes"
        ended = ended.model_copy(update={"state": JobState.NODE_FAIL, "reason": reason})
    update: dict[str, object] = {"ended_at": max(r.ended_at or 0.0 for r in nodes)}
    update["nodes"] = tuple(r.node for r in nodes)
    if cancelled:
        update |= {"state": JobState.CANCELLED, "reason": "cancelled"}
    return ended.model_copy(update=update)


def never_starts_for(job: SlurmJob, nodes: Callable[[], Sequence[SlurmNode]]) -> bool:
    """Whether the job would wait for ever; `nodes` is asked where that depends on them."""
    if job.state != "PENDING":
        return False
    if job.reason in _NODE_LIMITS:
        own = set(split_names(job.partition))
        return all(node.usable for node in nodes() if own & set(node.partitions) or not own)
    return job.reason == NEVER_SATISFIED or _LIMITS.fullmatch(job.reason) is not None


def never_starts(job: SlurmJob) -> Ended:
    """How a job ends that would wait for ever."""
    reason = (
        f"NeverStarts: {job.reason}: it asks for more than its partition, QOS or account allows"
    )
    if job.reason == NEVER_SATISFIED:
        reason = f"{NEVER_SATISFIED}: a job that this one depends on has not ended as it should"
    return Ended(state=JobState.FAILED, nodes=(), reason=reason)


def not_launched(job: SlurmJob, why: str) -> Ended:
    """How a job ended that a node could not start."""
    return Ended(
        state=JobState.NODE_FAIL,
        started_at=job.started_at,
        ended_at=job.ended_at,
        nodes=job.nodes,
        reason=f"the job could not be started: {why}",
    )


def nothing_seen(job: SlurmJob) -> Ended:
    """How a job ended that ran, and has left nothing where it was told to."""
    return Ended(
        state=JobState.FAILED,
        started_at=job.started_at,
        ended_at=job.ended_at,
        nodes=job.nodes,
        reason=(
            f"{NOTHING_SEEN}: nothing that the job wrote is seen here: the run directory and Python's "
            "environment must be on storage that all nodes share, and that the job's user can write to"
        ),
    )


def requeued(job: SlurmJob, nodes: Sequence[NodeRecord] = (), *, nodes_lost: bool = True) -> Ended:
    """How a job ended that Slurm has put back into its queue.

    v0.0.38 tells of a preemption only as long as the job is being ended. Later, one whose programs have all
    been told to end, on nodes of which none is lost (`nodes_lost`), was not put back for a node's sake.
    """
    told = [record.state is JobState.CANCELLED for record in nodes]
    preempted = "PREEMPTED" in job.flags or (bool(told) and all(told) and not nodes_lost)
    why = "it was preempted" if preempted else "a node failed, or it was preempted"
    return Ended(
        state=JobState.PREEMPTED if preempted else JobState.NODE_FAIL,
        started_at=None,
        ended_at=None,
        nodes=job.nodes or tuple(record.node for record in nodes),
        reason=f"Slurm has put the job back into its queue: {why}",
    )


def by_nodes(nodes: Sequence[NodeRecord]) -> Ended | None:
    """The end as the nodes saw it; None when none has ended. The first to fail says why, unless all
    wanted to be continued."""
    done = [record for record in nodes if record.state.final]
    if not done:
        return None
    failed = [record for record in done if record.state is not JobState.COMPLETED]
    real = [record for record in failed if record.exit_code != EXIT_CONTINUE]
    first = min(real or failed or done, key=lambda record: record.ended_at or 0.0)
    return Ended(
        state=first.state,
        exit_code=first.exit_code,
        signal=first.signal,
        started_at=min(record.started_at for record in nodes),
        ended_at=first.ended_at,
        reason=first.reason,
    )


def _is_storages_fault(job: SlurmJob) -> bool:
    """Whether a job of which nothing is seen did start: else its node could not, which is another matter."""
    return job.reason != _LAUNCH_FAILURE or job.signal == _CANNOT_WRITE_SIGNAL


def _was_requeued(job: SlurmJob, nodes: Sequence[NodeRecord]) -> bool:
    """Whether it was started again. Its first nodes' records bear the same number, but not this exit."""
    if job.restarts:
        return True
    own = any(record.exit_code == EXIT_REQUEUED for record in nodes)
    return EXIT_REQUEUED in (job.exit_code, job.derived_exit_code) and not own


def _started_at(job: SlurmJob, nodes: Sequence[NodeRecord]) -> float | None:
    return min([record.started_at for record in nodes], default=job.started_at)


def _plain_end(job: SlurmJob) -> tuple[int | None, int | None]:
    """Slurm's own numbers, for a program that has ended well in a job that has not."""
    return job.exit_code, job.signal


def _launch_failure(job: SlurmJob) -> str:
    return "" if job.reason in ("None", "NonZeroExitCode", "") else f"Slurm: {job.reason}"
