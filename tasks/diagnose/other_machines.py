"""Faults of machines that are none of the job's: drained before it began, or of a log that tells of the whole cluster."""

from __future__ import annotations

from tasks.diagnose.classes import CLASSES
from tasks.diagnose.findings import Finding
from tasks.diagnose.host_names import family_of, host_tokens, short_name
from tasks.diagnose.scan import Scan

_MIN_HOSTS = 2


def is_of_another_machine(finding: Finding, scan: Scan) -> bool:
    """Whether a node's fault is told of a host that is named like the job's own and is none of them."""
    members = _members(scan)
    if not CLASSES[finding.failure_class].node_local or len(members) < _MIN_HOSTS:
        return False
    names = {short_name(name) for name in host_tokens(finding.line.text)}
    families = {family_of(name) for name in members}
    like_members = {name for name in names if family_of(name) in families}
    return bool(like_members) and not like_members & members


def _members(scan: Scan) -> set[str]:
    """All hosts of the job, where it is told of each rank; else none."""
    by_rank, total = scan.topology.by_rank, scan.roll_call.total
    if not total or len(by_rank) < total:
        return set()
    return {short_name(host) for host in (*by_rank.values(), *scan.topology.job_hosts)}
