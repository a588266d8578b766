"""Whether a node, the site or the user is at fault, where more than the error's own line tells it."""

from __future__ import annotations

from dataclasses import replace

from tasks.diagnose.findings import Finding
from tasks.diagnose.place import TIMEOUTS
from tasks.diagnose.scan import Scan

_OF_THE_DRIVER = ("cuda_environment", "gpu_needs_reset")
_STORAGE = "storage_fault"
_OF_A_SERVER = ("LustreError", "transport endpoint", "not responding", "stale file handle")
_STARTS = 3
_RAISE_THE_TIMEOUT = (
    "One rank still prepared the data while the others waited: prepare it beforehand, or raise the process group's "
    "time-out (ddp_timeout)."
)


def with_whose_fault(finding: Finding, scan: Scan) -> Finding:
    """The finding, with the action and the node that follow."""
    if finding.method in TIMEOUTS and _data_is_prepared(scan):
        return replace(finding, action="fix_by_user", mitigation=_RAISE_THE_TIMEOUT)
    if finding.method in _OF_THE_DRIVER and "driver" in finding.line.body.lower():
        odd = scan.watchers.drivers.odd_host()
        return finding if odd is None else replace(finding, node=odd, action="restart_exclude_node")
    if finding.method == _STORAGE and _several_hosts_lost_a_server(scan):
        return replace(finding, action="resubmit_later")
    if finding.failure_class == "CUDAError" and _in_each_start(finding, scan):
        return replace(finding, action="restart_exclude_node")
    return finding


def _data_is_prepared(scan: Scan) -> bool:
    """Whether a rank was still busy with the data, of a job that has done no step."""
    return not scan.progress.steps_seen and scan.watchers.preparation.under_way()


def _several_hosts_lost_a_server(scan: Scan) -> bool:
    """Whether a file system's server is away: one host alone may have been cut off by its own fault."""
    alike = [f for f in scan.fatal("cause") if f.method == _STORAGE]
    lines = [f.line for f in alike if any(word in f.line.body for word in _OF_A_SERVER)]
    return len({scan.topology.named_in(line.text) for line in lines} - {None}) > 1


def _in_each_start(finding: Finding, scan: Scan) -> bool:
    """Whether the same rank has met the same error after each of several starts, between which training went on."""
    if finding.action is not None or finding.rank is None:
        return False
    met = [f for f in scan.findings if f.method == finding.method and f.rank == finding.rank]
    return len({(f.steps_before, f.reports_before) for f in met}) >= _STARTS
