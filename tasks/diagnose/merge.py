"""Scans of parts of a job's files, made by several processes -> one scan of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tasks.diagnose.findings import Finding
from tasks.diagnose.scan import MAX_ASIDES, Scan


def merge(scans: Sequence[Scan]) -> Scan:
    """One scan of all, as if the first had gone on to the others' files. The first is changed."""
    whole = scans[0]
    for part in scans[1:]:
        whole.accounting.merge(part.accounting, whole.order)
        _merge_findings(whole, part)
        whole.progress.merge(part.progress)
        whole.topology.merge(part.topology)
        whole.roll_call.merge(part.roll_call)
        whole.idle_hosts.merge(part.idle_hosts)
        whole.watchers.merge(part.watchers)
        whole.torchrun.merge(part.torchrun)
        whole.collectives.merge(part.collectives)
        whole.timeline.merge(part.timeline)
        whole.survival.merge(part.survival)
        whole.suspicious = whole.suspicious or part.suspicious
        whole.shortened = whole.shortened or part.shortened
        whole.crashes = {**part.crashes, **whole.crashes}
        whole.ranks |= part.ranks
    return whole


def _merge_findings(whole: Scan, part: Scan) -> None:
    """Findings keep their order in their part, behind what the whole has read."""

    def later(findings: Sequence[Finding]) -> list[Finding]:
        return [replace(f, order=f.order + whole.order) for f in findings]

    whole.kept.take_over(part.kept, whole.order)
    whole.asides = [*whole.asides, *later(part.asides)][-MAX_ASIDES:]
    whole.withdrawn = [*whole.withdrawn, *later(part.withdrawn)][-MAX_ASIDES:]
    whole.streams.update(part.streams)
    whole.crowded_lines += part.crowded_lines
    whole.lines_read += part.lines_read
    whole.cut_off += part.cut_off
    whole.unreadable.update(part.unreadable)
    whole.order += part.order
