"""Which findings may have begun it all, and what the rest of the logs adds to one of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tasks.diagnose.cancels import without_what_came_after_a_cancel
from tasks.diagnose.findings import COMMUNICATION, LINK, Finding
from tasks.diagnose.lost_hosts import host_lost_beside
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.place import TIMEOUTS
from tasks.diagnose.scan import Scan
from tasks.diagnose.whose_fault import with_whose_fault

_MONITORED = "hang_noticed"
_GPU_LOST = "xid_gpu_lost"
_GPU_MEMORY = "gpu_out_of_memory"
_CARD_FAILS = "nccl_connect_refused"
_PORT_TAKEN = "network_port_taken"
_WORKER_KILLED = "dataloader_worker_out_of_memory"
_MEMORY_KILLS = ("slurm_oom", _WORKER_KILLED)
_LINES_OF_A_TABLE = 4096
_NO_DRIVER = "driver_library"
_OUTSIDE = ("S3StorageError", "ConnectionError", "DatasetLoadingError")
_AGAIN_AND_AGAIN = 3
_LINES_UNTIL_EFFECTS = 20
_MANY_HOSTS = 3
_CLEAN_THE_NODE = "Processes of another user hold the node's memory: have them ended before the node is used again."
_EARLIER_WORK = compile_pattern(
    r"(?i)\b(?:previous|earlier|last|pending|outstanding|background|asynchronous|async)\b.{0,40}"
    r"\b(?:upload|save|checkpoint|writ(?:e|er|ing)|staging|copy|transfer|prefetch)\w*\b.{0,40}\b(?:fail|not|never|died|dead|error|incomplete)"
)
_OTHER_PROCESS = compile_pattern(
    r"Process (?P<pid>\d{1,9}) has (?P<size>[\d.]{1,12}) GiB memory in use"
)
_THIS_PROCESS = compile_pattern(
    r"this process has (?P<size>[\d.]{1,12}) (?P<unit>[GM])iB memory in use"
)
_MIB_PER_GIB = 1024.0


def told_and_mentioned(scan: Scan) -> tuple[list[Finding], list[Finding]]:
    """Causes, apart from exceptions that a line mentions long before anything else goes wrong."""
    causes = [f for f in _without_monitors_of_timeouts(scan) if not _is_left_over(f, scan)]
    causes = without_what_came_after_a_cancel(causes, scan)
    told = [f for f in causes if not f.in_passing]
    mentioned = [f for f in causes if f.in_passing]
    if told:
        return told, []
    first = min((f.order for f in scan.fatal("effect")), default=0)
    late = [f for f in mentioned if _is_behind(f, first)]
    return [f for f in mentioned if not _is_behind(f, first)], late


def _is_behind(mentioned: Finding, first: int) -> bool:
    """Whether it counts less than the effects, of which the first is told: it comes long before, or of a server's end."""
    of_an_end = mentioned.failure_class == "ConnectionError" and 0 < first < mentioned.order
    return of_an_end or first - mentioned.order > _LINES_UNTIL_EFFECTS


def _is_left_over(cause: Finding, scan: Scan) -> bool:
    """Whether a port is taken by what is left of the same job: it had trained before, and lost its peers."""
    if cause.method != _PORT_TAKEN or not cause.steps_before + cause.reports_before:
        return False
    return any(
        f.line.file == cause.line.file
        and f.order < cause.order
        and f.failure_class in COMMUNICATION
        for f in scan.fatal("effect")
    )


def _without_monitors_of_timeouts(scan: Scan) -> list[Finding]:
    """Causes, but for the words of monitors that noticed no progress only after a collective had timed out."""
    timeouts = [f.order for f in scan.fatal("effect") if f.method in TIMEOUTS]
    first = min(timeouts, default=None)
    return [
        f for f in scan.fatal("cause") if f.method != _MONITORED or first is None or f.order < first
    ]


def behind_effect(effect: Finding, scan: Scan) -> Finding:
    """What is told beside failed communication: a link that is down, a host that is gone; else the effect itself."""
    told = _link_fault_beside(effect, scan) or host_lost_beside(effect, scan)
    return told or _port_found_down(effect, scan) or effect


def _link_fault_beside(effect: Finding, scan: Scan) -> Finding | None:
    """A link that went down shortly before communication failed: training may go on over others for a while.

    Else one that a check found down afterwards.
    """
    if effect.failure_class not in COMMUNICATION:
        return None
    faults = [f for f in scan.findings if f.method == LINK]
    recent = [f for f in faults if scan.survival.just_before_the_end(f)]
    return recent[0] if recent else None


def _port_found_down(effect: Finding, scan: Scan) -> Finding | None:
    """A port that a check found down on one host alone, of a job that never came to its first step."""
    if effect.failure_class not in COMMUNICATION or scan.progress.steps_seen:
        return None
    if (odd := scan.watchers.ports.odd_host()) is None:
        return None
    host, line = odd
    return replace(
        effect,
        failure_class="NetworkError",
        method=LINK,
        line=line if line.file == effect.line.file else effect.line,
        node=host,
        rank=None,
        action="restart_exclude_node",
    )


def amended(finding: Finding, scan: Scan) -> Finding:
    """The finding, with class and action as other lines have it; or that which led to it."""
    if finding.method == _GPU_LOST and _a_rank_met_a_cuda_error(scan):
        return replace(finding, failure_class="CUDAError", action="restart_exclude_node")
    if finding.method == _GPU_MEMORY and _is_held_by_a_foreign_process(finding, scan):
        return replace(finding, action="restart_exclude_node")
    if finding.method in _MEMORY_KILLS:
        return _for_others_sake(_of_the_worker_that_was_killed(finding, scan), scan)
    if finding.method == _NO_DRIVER and not _is_on_one_of_several_hosts(finding, scan):
        return replace(finding, action="fix_by_user")
    if finding.method == "exception" and finding.failure_class == "RuntimeError":
        return _led_to_by(finding, scan) or finding
    if finding.method == LINK and _is_down_on_most_hosts(scan):
        return replace(finding, node=None, action="restart_same_nodes")
    if finding.method == _CARD_FAILS and _fails_on_most_hosts_at_once(finding, scan):
        return replace(finding, action="fix_by_user")
    if finding.role == "effect" and finding.node is not None and _peers_differ(finding, scan):
        return replace(finding, node=None, action=None)
    return with_whose_fault(finding, scan)


def _of_the_worker_that_was_killed(finding: Finding, scan: Scan) -> Finding:
    """The kernel's choice of a data worker, where the finding is the table that leads to it."""
    if "invoked oom-killer" not in finding.line.body:
        return finding
    for f in scan.fatal("decisive"):
        ahead = f.line.number - finding.line.number
        if f.method == _WORKER_KILLED and 0 < ahead < _LINES_OF_A_TABLE:
            return f if f.line.file == finding.line.file else finding
    return finding


def _for_others_sake(finding: Finding, scan: Scan) -> Finding:
    """A kill on a node whose memory another user's processes held: the node is to be cleaned."""
    if (finding.line.file, finding.line.number) not in scan.watchers.host_memory.foreign:
        return finding
    return replace(finding, action="restart_exclude_node", mitigation=_CLEAN_THE_NODE)


def _led_to_by(finding: Finding, scan: Scan) -> Finding | None:
    """What the same rank met again and again, the last time, before it gave up in words of its own."""
    recent = [f for f in scan.findings if scan.survival.just_before_the_end(f)] + scan.asides
    before = [f for f in recent if f.rank == finding.rank and f.order < finding.order]
    met = [f for f in before if f.failure_class in _OUTSIDE]
    return met[-1] if len(met) >= _AGAIN_AND_AGAIN else _of_earlier_work(finding, scan)


def _of_earlier_work(finding: Finding, scan: Scan) -> Finding | None:
    """The error of a thread that training did not wait for, when it stops because that work was never done."""
    if _EARLIER_WORK.search(finding.line.body) is None:
        return None
    before = [f for f in scan.findings if f.rank == finding.rank and f.order < finding.order]
    met = [f for f in before if f.failure_class in (*_OUTSIDE, "OSError") and f.role == "cause"]
    return met[-1] if met else None


def _peers_differ(finding: Finding, scan: Scan) -> bool:
    """Whether no peer is named by more than another: each only tells who is next to it."""
    alike = [f for f in scan.fatal("effect") if f.failure_class == finding.failure_class]
    told = {(f.node, scan.topology.named_in(f.line.text) or f.rank) for f in alike if f.node}
    by_whom = {(node, writer) for node, writer in told if writer is not None}
    named = Counter(node for node, _ in by_whom or told).most_common(2)
    return len(named) > 1 and named[0][1] == named[1][1]


def _a_rank_met_a_cuda_error(scan: Scan) -> bool:
    """Whether the GPU alone is gone: of a node that is gone, no rank says anything."""
    return any(f.failure_class == "CUDAError" for f in scan.fatal("cause"))


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


def _is_down_on_most_hosts(scan: Scan) -> bool:
    """Whether links went down on so many hosts that what is between them is at fault."""
    faults = [f for f in scan.findings if f.method == LINK and scan.survival.just_before_the_end(f)]
    hosts = {scan.topology.named_in(f.line.text) for f in faults} - {None}
    members = scan.topology.job_hosts or set(scan.topology.by_rank.values())
    return len(hosts) >= _MANY_HOSTS and 2 * len(hosts) > len(members)


def _fails_on_most_hosts_at_once(finding: Finding, scan: Scan) -> bool:
    """Whether so many hosts' own cards fail before the first step that they are set up wrongly."""
    if finding.node is not None or scan.progress.steps_seen:
        return False
    alike = [f for f in scan.fatal("effect") if f.method == finding.method]
    if any(f.node is not None for f in alike):
        return False
    return len({scan.topology.named_in(f.line.text) for f in alike} - {None}) >= _MANY_HOSTS


def _is_on_one_of_several_hosts(finding: Finding, scan: Scan) -> bool:
    alike = [f for f in scan.fatal("cause") if f.method == finding.method]
    hosts = {scan.topology.named_in(f.line.text) for f in alike} - {None}
    known = scan.topology.hosts | set(scan.topology.by_rank.values())
    return len(hosts) == 1 and len(known) > 1
