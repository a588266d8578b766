"""Scans of parts of a job's files, made by several processes -> one scan of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tasks.diagnose.findings import Finding
from tasks.diagnose.scan import Scan


def merge(scans: Sequence[Scan]) -> Scan:
    """One scan of all, as if the first had gone on to the others' files. The first is changed."""
    whole = scans[0]
    for part in scans[1:]:
        _merge_findings(whole, part)
        whole.progress.merge(part.progress)
        topology, other = whole.topology, part.topology
        topology.by_rank = {**other.by_rank, **topology.by_rank}
        topology.by_pid = {**topology.by_pid, **other.by_pid}
        for address, host in other.by_address.items():
            topology.place_address(address, host)
        topology.failed_tasks = {**other.failed_tasks, **topology.failed_tasks}
        topology.hosts |= other.hosts
        topology.job_hosts |= other.job_hosts
        topology.merge_rest(other)
        whole.roll_call.merge(part.roll_call)
        whole.idle_hosts.busy.update(part.idle_hosts.busy)
        whole.torchrun.failures.update(part.torchrun.failures)
        whole.torchrun.ended_by_torchrun |= part.torchrun.ended_by_torchrun
        whole.torchrun.told_to_stop = whole.torchrun.told_to_stop or part.torchrun.told_to_stop
        for rank, number in part.collectives.waiting_in.items():
            whole.collectives.waiting_in.setdefault(rank, number)
        for rank, number in part.collectives.enqueued.items():
            whole.collectives.enqueued.setdefault(rank, number)
        whole.collectives.named += part.collectives.named
        whole.timeline.merge(part.timeline)
        whole.suspicious = whole.suspicious or part.suspicious
        whole.crashes = {**part.crashes, **whole.crashes}
        whole.ranks |= part.ranks
        whole.survival.failed_exits.update(part.survival.failed_exits)
        whole.survival.begun_again.update(part.survival.begun_again)
        failed = whole.survival.task_failed or part.survival.task_failed
        whole.survival.task_failed = failed
    return whole


def _merge_findings(whole: Scan, part: Scan) -> None:
    """Findings keep their order in their part, behind what the whole has read."""

    def later(findings: Sequence[Finding]) -> list[Finding]:
        return [replace(f, order=f.order + whole.order) for f in findings]

    whole.kept.take_over(part.kept, whole.order)
    whole.asides += later(part.asides)
    whole.withdrawn += later(part.withdrawn)
    whole.streams.update(part.streams)
    whole.crowded_lines += part.crowded_lines
    whole.lines_read += part.lines_read
    whole.cut_off += part.cut_off
    whole.order += part.order
