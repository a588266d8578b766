"""Where a fault is: the rank that the others wait for, the node that a finding is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tasks.diagnose.classes import CLASSES
from tasks.diagnose.findings import Finding
from tasks.diagnose.host_names import is_loopback, only_name_in
from tasks.diagnose.logs import writer_of
from tasks.diagnose.lost_hosts import lost_host
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.scan import Scan

TIMEOUTS = ("nccl_timeout", "collective_timeout")
_PROCESS = compile_pattern(r"(?:\bpid[=' ]+|[Kk]illed? process )(\d+)")
_CRASHED = compile_pattern(
    r"(?i)\bsignal: (?:aborted|segmentation fault|bus error|illegal instruction|floating point)|\bsegmentation fault\b"
)
_NAMES_ANOTHER = ("job_node_fail",)
"""Rules whose lines name the batch host."""
_COUNTED = ("NVLinkError", "ECCError", "NetworkError")
"""Faults that devices count."""
_OUT_OF_MEMORY = "Out Of Memory"


def node_of(finding: Finding, scan: Scan) -> str | None:
    """Node of a fault that sits in a node; None for all others, and where nothing tells."""
    name = _name_of_node(finding, scan)
    host = None if name is None else scan.topology.host(name, None)
    return None if host is None or is_loopback(host) else host


def _name_of_node(finding: Finding, scan: Scan) -> str | None:
    """The same, which may be an address of it, or a pod that it runs."""
    if not _sits_in_a_node(finding, scan):
        return None
    alike = [f for f in scan.fatal(finding.role) if f.failure_class == finding.failure_class]
    others = alike if finding.role == "decisive" else []
    if (name := _named_outright(finding, alike)) is not None:
        return name
    if (name := _named_by_the_scheduler(finding, scan)) is not None:
        return name
    if finding.role == "effect" and (host := _whose_counters_rose(finding, scan)) is not None:
        return host  # The line names who reports it.
    if (name := _named_in_lines(finding, others, scan)) is not None:
        return name
    if (host := _whose_counters_rose(finding, scan)) is not None:
        return host
    topology, rank = scan.topology, rank_of(finding, scan)
    host = topology.host(None, rank) or topology.failed_task_host() or topology.only_host()
    if host is None and finding.role != "effect":
        return scan.watchers.mentions.only(topology.hosts | topology.job_hosts)
    return host


def _sits_in_a_node(finding: Finding, scan: Scan) -> bool:
    if finding.failure_class == "DataloaderKilled" and (
        finding.action == "fix_by_user" or _CRASHED.search(finding.line.body) is not None
    ):
        return False  # Shared memory that is too small, or code that crashes, on whatever node.
    if finding.failure_class == "Hang" and finding.action == "restart_same_nodes":
        return False  # Several hosts wait for what they share.
    local = CLASSES[finding.failure_class].node_local or finding.action == "restart_exclude_node"
    return local or names_a_peer(finding, scan)


def _named_outright(finding: Finding, alike: list[Finding]) -> str | None:
    """The node that a rule has found in the line, or in one like it: of effects, that which most of them name."""
    same = [f for f in alike if f.method == finding.method]
    told = alike if finding.role == "decisive" else same
    if finding.role == "effect" and (named := _most_named([f.node for f in same if f.node])):
        return named
    return next((f.node for f in (finding, *told) if f.node is not None), None)


def _named_by_the_scheduler(finding: Finding, scan: Scan) -> str | None:
    """The host of the task that Slurm saw fail so, or that is lost when it only says that some node is."""
    if finding.failure_class == "CgroupOOM" and (
        host := scan.topology.failed_task_host(_OUT_OF_MEMORY)
    ):
        return host
    lost = lost_host(scan) if finding.method in _NAMES_ANOTHER else None
    return None if lost is None else lost[0]


def _named_in_lines(finding: Finding, others: list[Finding], scan: Scan) -> str | None:
    """The host that the finding's line, or one of the others', is about; else the one that wrote it."""
    topology = scan.topology
    undecided = finding.failure_class == "Hang" and topology.names_several(finding.line.body)
    if finding.method in _NAMES_ANOTHER or undecided:
        return None
    hosts = (topology.named_in(other.line.body) for other in (finding, *others))
    if (host := next((name for name in hosts if name is not None), None)) is not None:
        return host
    lines = [f.line.text for f in (finding, *others)] if finding.role != "effect" else []
    if (node := next(filter(None, map(topology.pods.named_in, lines)), None)) is not None:
        return node
    if finding.role != "effect" and (node := topology.pods.node_of_label(finding.line.text)):
        return node
    writer = topology.writer_of(finding.line) if finding.role != "effect" else None
    if writer is None and finding.role == "decisive":
        return only_name_in(finding.line.text)
    return writer


def _whose_counters_rose(finding: Finding, scan: Scan) -> str | None:
    return scan.watchers.counters.only_host() if finding.failure_class in _COUNTED else None


def _most_named(hosts: list[str]) -> str | None:
    """The name that comes most often, the first of several."""
    return Counter(hosts).most_common(1)[0][0] if hosts else None


def names_a_peer(finding: Finding, scan: Scan) -> bool:
    """Whether an effect names, by an address that is known, the node that its cause is on."""
    return finding.role == "effect" and finding.node in scan.topology.by_address


def rank_of(finding: Finding, scan: Scan) -> int | None:
    """Rank of a finding: its line's own, or that of the process that the kernel names."""
    if finding.rank is not None:
        # torchrun's own prefix tells the rank on the node, its report that of the job.
        is_local = f"[default{finding.rank}]:" in finding.line.text
        told = scan.torchrun.global_rank(finding.rank) if is_local else None
        return finding.rank if told is None else told
    match = _PROCESS.search(finding.line.body)
    if match is None:
        writer = writer_of(finding.line)
        return scan.topology.rank_before(finding.line.text) if writer is None else writer
    pid = int(match[1])
    death = scan.torchrun.failure_of(pid)
    if death is not None and death.rank is not None:
        return death.rank
    return scan.topology.rank_of(scan.topology.named_in(finding.line.body), pid)


def stuck_ranks(scan: Scan) -> set[int]:
    """The ranks that the others wait for: those that report no time-out, or are a step behind."""
    if (silent := scan.watchers.heartbeats.silent_rank()) is not None:
        return {silent}
    reported = {f.rank for f in scan.fatal("effect") if f.method in TIMEOUTS}
    known = known_ranks(scan)
    own = {rank for rank in reported if rank is not None}
    if reported:
        absent = scan.collectives.absent(known, own)
        return absent if len(absent) == 1 or one_host(scan, absent) else set()
    return scan.progress.by_rank.laggards()


def who_is_missing(scan: Scan) -> tuple[set[int], str | None]:
    """Of a job that does nothing: the ranks that the others wait for, and the host, if they can be told."""
    if (looked_at := _seen_by_watchers(scan)) is not None:
        return looked_at
    ranks = stuck_ranks(scan) or scan.roll_call.missing(known_ranks(scan))
    if not ranks:
        return ranks, scan.idle_hosts.only_idle() or scan.topology.tables.silent_writer()
    return ranks, one_host(scan, ranks) or host_by_order(scan, ranks)


def _seen_by_watchers(scan: Scan) -> tuple[set[int], str | None] | None:
    """The same, by those who have looked at the processes of the job: NCCL's own service, somebody's debugger."""
    ras, odd = scan.watchers.ras, scan.watchers.stacks.odd_one()
    if ras.line is not None:
        ranks, host = set(ras.nodes), scan.topology.host(ras.node, None)
        return ranks, host or one_host(scan, ranks)
    if odd is not None:
        rank, host = odd
        ranks = set() if rank is None else {rank}
        return ranks, scan.topology.host(host, rank) or host_by_order(scan, ranks)
    if (missing := scan.watchers.roll_calls.missing(scan.topology.job_hosts)) is not None:
        return set(), missing[0]
    return None


def host_by_order(scan: Scan, ranks: set[int]) -> str | None:
    """The host of all these ranks, if all that is told is a list of hosts, which ranks go through evenly."""
    hosts, size = list(scan.topology.tables.lists.hosts), scan.roll_call.total
    if not ranks or scan.topology.by_rank or len(hosts) < 2 or size % len(hosts):
        return None
    found = {hosts[rank // (size // len(hosts))] for rank in ranks if rank < size}
    return found.pop() if len(found) == 1 else None


def known_ranks(scan: Scan) -> set[int]:
    """All that have written, or of which something tells where they are."""
    return scan.ranks | set(scan.topology.by_rank)


def one_host(scan: Scan, ranks: Iterable[int]) -> str | None:
    """The host of all these ranks, when it is one of several."""
    topology = scan.topology
    by_rank = {**topology.by_launch, **topology.by_rank}
    hosts = {topology.host(None, rank) for rank in ranks}
    several = {*by_rank.values(), *topology.tables.lists.hosts, *topology.job_hosts}
    return hosts.pop() if len(hosts) == 1 and len(several) > 1 else None
