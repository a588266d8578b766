"""Whether a node, the site or the user is at fault, where more than the error's own line tells it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tasks.diagnose.findings import LINK, Finding, Role
from tasks.diagnose.kept_findings import MAX_ALIKE
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.place import TIMEOUTS
from tasks.diagnose.scan import Scan

WORKER_KILLED = "dataloader_worker_out_of_memory"
MEMORY_KILLS = ("slurm_oom", WORKER_KILLED)
_GPU_MEMORY = "gpu_out_of_memory"
_NO_DRIVER = "driver_library"
_OF_THE_DRIVER = ("cuda_environment", "gpu_needs_reset")
_CARD_FAILS = "nccl_connect_refused"
_RESET_FAILED = "gpu_reset_failed"
_OWN_ADDRESS = "network_own_address"
_RENDEZVOUS = "rendezvous"
_STORAGE = "storage_fault"
_HUNG_TASK = "kernel_hung_task"
_OF_A_SERVER = ("LustreError", "transport endpoint", "not responding", "stale file handle")
_MANY_HOSTS = 3
_STARTS = 3
_CLEAN_THE_NODE = "Processes of another user hold the node's memory: have them ended before the node is used again."
_RAISE_THE_TIMEOUT = (
    "One rank still prepared the data while the others waited: prepare it beforehand, or raise the process group's "
    "time-out (ddp_timeout)."
)
_OTHER_PROCESS = compile_pattern(
    r"Process (?P<pid>\d{1,9}) has (?P<size>[\d.]{1,12}) GiB memory in use"
)
_THIS_PROCESS = compile_pattern(
    r"this process has (?P<size>[\d.]{1,12}) (?P<unit>[GM])iB memory in use"
)
_MIB_PER_GIB = 1024.0


def with_whose_fault(finding: Finding, scan: Scan) -> Finding:
    """The finding, with the action and the node that follow."""
    judges = (_of_memory, _of_driver, _of_network, _of_waiting, _of_storage, _of_gpu, _of_a_hang)
    judged = (judge(finding, scan) for judge in judges)
    return next((found for found in judged if found is not None), finding)


def _of_memory(finding: Finding, scan: Scan) -> Finding | None:
    if finding.method == _GPU_MEMORY and _is_held_by_a_foreign_process(finding, scan):
        return replace(finding, action="restart_exclude_node")
    place = (finding.line.file, finding.line.number)
    if finding.method in MEMORY_KILLS and place in scan.watchers.host_memory.foreign:
        return replace(finding, action="restart_exclude_node", mitigation=_CLEAN_THE_NODE)
    return None


def _is_held_by_a_foreign_process(finding: Finding, scan: Scan) -> bool:
    """Whether most of the GPU's memory is in use by a process that is none of the job's, left by another."""
    match = _OTHER_PROCESS.search(finding.line.body)
    this = _THIS_PROCESS.search(finding.line.body)
    if match is None or this is None:
        return False
    own_gib = float(this["size"]) / (_MIB_PER_GIB if this["unit"] == "M" else 1.0)
    if float(match["size"]) <= own_gib:
        return False
    if int(match["pid"]) in scan.watchers.gpu_strangers.pids:
        return True
    processes = scan.topology.by_pid
    all_known = scan.ranks <= set(processes.values())
    return all_known and int(match["pid"]) not in {pid for _, pid in processes}


def _of_driver(finding: Finding, scan: Scan) -> Finding | None:
    """A driver that is missing everywhere, or not the same on one node, is not each node's own fault."""
    if finding.method == _NO_DRIVER and not _is_on_one_of_several_hosts(finding, scan):
        return replace(finding, action="fix_by_user")
    if finding.method in _OF_THE_DRIVER and "driver" in finding.line.body.lower():
        odd = scan.watchers.drivers.odd_host()
        return None if odd is None else replace(finding, node=odd, action="restart_exclude_node")
    return None


def _is_on_one_of_several_hosts(finding: Finding, scan: Scan) -> bool:
    hosts = _hosts_that_say_it("cause", finding.method, scan)
    known = scan.topology.hosts | set(scan.topology.by_rank.values())
    return len(hosts) == 1 and len(known) > 1


def _of_network(finding: Finding, scan: Scan) -> Finding | None:
    """What many hosts have at once, or tell of each other, is the fault of none of them."""
    if finding.method == LINK and _is_down_on_most_hosts(scan):
        return replace(finding, node=None, action="restart_same_nodes")
    if finding.method == _RENDEZVOUS and any(
        f.method == _OWN_ADDRESS for f in scan.fatal("effect")
    ):
        return replace(finding, node=None, action="fix_by_user")
    if finding.method == _CARD_FAILS and _fails_on_most_hosts_at_once(finding, scan):
        return replace(finding, action="fix_by_user")
    if finding.role == "effect" and finding.node is not None and _peers_differ(finding, scan):
        return replace(finding, node=None, action=None)
    return None


def _is_down_on_most_hosts(scan: Scan) -> bool:
    """Whether links went down on so many hosts that what is between them is at fault."""
    faults = [f for f in scan.findings if f.method == LINK and scan.survival.just_before_the_end(f)]
    hosts = {scan.topology.named_in(f.line.text) for f in faults} - {None}
    members = scan.topology.job_hosts or set(scan.topology.by_rank.values())
    most = len(hosts) >= _MANY_HOSTS and 2 * len(hosts) > len(members)
    return most or len(hosts) >= MAX_ALIKE  # More are not kept.


def _fails_on_most_hosts_at_once(finding: Finding, scan: Scan) -> bool:
    """Whether so many hosts' own cards fail before the first step that they are set up wrongly."""
    if finding.node is not None or scan.progress.steps_seen:
        return False
    if any(f.node is not None for f in scan.fatal("effect") if f.method == finding.method):
        return False
    return len(_hosts_that_say_it("effect", finding.method, scan)) >= _MANY_HOSTS


def _peers_differ(finding: Finding, scan: Scan) -> bool:
    """Whether no peer is named by more than another, or no one of many by most: each tells who is next to it."""
    alike = [f for f in scan.fatal("effect") if f.failure_class == finding.failure_class]
    told = {(f.node, _who_names(f.node, f, scan)) for f in alike if f.node}
    by_whom = {(node, writer) for node, writer in told if writer is not None}
    named = Counter(node for node, _ in by_whom or told)
    votes = sorted(named.values(), reverse=True)
    if len(votes) >= _MANY_HOSTS and 2 * votes[0] < sum(votes):
        return True
    return len(votes) > 1 and votes[0] == votes[1]


def _who_names(peer: str, finding: Finding, scan: Scan) -> str | int | None:
    """Host or rank that writes a line about a peer, whose own name stands in it."""
    before, _, _ = finding.line.text.rpartition(peer)
    return scan.topology.named_in(before or finding.line.text) or finding.rank


def _of_waiting(finding: Finding, scan: Scan) -> Finding | None:
    """Ranks that gave up to wait for one that was still busy with the data, of a job that has done no step."""
    prepares = not scan.progress.steps_seen and scan.watchers.preparation.under_way()
    if finding.method in TIMEOUTS and prepares:
        return replace(finding, action="fix_by_user", mitigation=_RAISE_THE_TIMEOUT)
    return None


def _of_storage(finding: Finding, scan: Scan) -> Finding | None:
    """A file system's server that is away: one host alone may have been cut off by its own fault."""
    if finding.method != _STORAGE:
        return None
    several = len(_hosts_that_say_it("cause", _STORAGE, scan, of=_OF_A_SERVER)) > 1
    return replace(finding, action="resubmit_later") if several else None


def _of_gpu(finding: Finding, scan: Scan) -> Finding | None:
    """The driver could not bring the GPU back, or the same rank has met the same error after each of several
    starts, between which training went on."""
    if finding.failure_class != "CUDAError" or finding.action is not None:
        return None
    if any(f.method == _RESET_FAILED for f in scan.fatal("cause")):
        return replace(finding, action="restart_exclude_node")
    if finding.rank is None:
        return None
    met = [f for f in scan.findings if f.method == finding.method and f.rank == finding.rank]
    starts = {(f.steps_before, f.reports_before) for f in met}
    return replace(finding, action="restart_exclude_node") if len(starts) >= _STARTS else None


def _of_a_hang(finding: Finding, scan: Scan) -> Finding | None:
    """A kernel whose process does not come back; where several tell so, it is something that they share."""
    if finding.method != _HUNG_TASK:
        return None
    hosts = _hosts_that_say_it(finding.role, _HUNG_TASK, scan)
    if len(hosts) == 1:
        return replace(finding, node=hosts.pop(), action="restart_exclude_node")
    return replace(finding, action="restart_same_nodes") if hosts else None


def _hosts_that_say_it(
    role: Role, method: str, scan: Scan, *, of: tuple[str, ...] = ("",)
) -> set[str]:
    """Hosts whose lines have a finding of that method; `of`: words of which the line has one."""
    lines = [f.line for f in scan.fatal(role) if f.method == method]
    told = (line for line in lines if any(word in line.body for word in of))
    named = (scan.topology.named_in(line.text) for line in told)
    return {name for name in named if name is not None}
