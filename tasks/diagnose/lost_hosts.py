"""The one host of a job that is gone, where ranks only miss their peers and the scheduler does not name it.

A host of the job that did not answer the last roll call, or that alone a launcher, a scheduler or a
management controller has trouble with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tasks.diagnose.findings import COMMUNICATION, Finding
from tasks.diagnose.host_names import short_name
from tasks.diagnose.logs import LogLine
from tasks.diagnose.scan import Scan
from tasks.diagnose.survival import STEPS_AFTER

_LOST = "host_lost"


def lost_host(scan: Scan) -> tuple[str, LogLine] | None:
    """The host, and the first line that says so."""
    missing = scan.watchers.roll_calls.missing(scan.topology.job_hosts)
    return missing or _only_member_in_trouble(scan)


def host_lost_beside(effect: Finding, scan: Scan) -> Finding | None:
    """A host that is gone, of a job whose ranks only say that communication failed."""
    if effect.failure_class not in COMMUNICATION or (lost := lost_host(scan)) is None:
        return None
    host, line = lost
    first = line if line.file == effect.line.file and line.number < effect.line.number else None
    return replace(
        effect,
        failure_class="NodeFailure",
        method=_LOST,
        line=first or effect.line,
        node=host,
        rank=None,
        action="restart_exclude_node",
    )


def _only_member_in_trouble(scan: Scan) -> tuple[str, LogLine] | None:
    topology, troubles = scan.topology, scan.watchers.troubles
    members = _short(
        topology.job_hosts
        or set(topology.by_rank.values())
        or set(topology.pods.nodes.values())
        or set(topology.by_address.values())
    )
    found: dict[str, LogLine] = {}
    for name, last in troubles.last.items():
        host = topology.host(name, None) or name
        if short_name(host) not in members:
            continue
        if scan.progress.steps_in[last.line.file] - last.steps < STEPS_AFTER:
            found.setdefault(host, troubles.first[name].line)
    return next(iter(found.items())) if len(found) == 1 else None


def _short(names: Iterable[str]) -> set[str]:
    return {short_name(name) for name in names}
