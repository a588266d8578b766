"""Which findings may have begun it all, and what the rest of the logs adds to one of them."""

from __future__ import annotations

from dataclasses import replace

from tasks.diagnose.cancels import without_what_came_after_a_cancel
from tasks.diagnose.findings import COMMUNICATION, LINK, Finding
from tasks.diagnose.lost_hosts import host_lost_beside
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.place import TIMEOUTS
from tasks.diagnose.scan import Scan
from tasks.diagnose.whose_fault import MEMORY_KILLS, WORKER_KILLED, with_whose_fault

_MONITORED = "hang_noticed"
_GPU_LOST = "xid_gpu_lost"
_PORT_TAKEN = "network_port_taken"
_LINES_OF_A_TABLE = 4096
_OUTSIDE = ("S3StorageError", "ConnectionError", "DatasetLoadingError")
_AGAIN_AND_AGAIN = 3
_LINES_UNTIL_EFFECTS = 20
_EARLIER_WORK = compile_pattern(
    r"(?i)\b(?:previous|earlier|last|pending|outstanding|background|asynchronous|async)\b.{0,40}"
    r"\b(?:upload|save|checkpoint|writ(?:e|er|ing)|staging|copy|transfer|prefetch)\w*\b.{0,40}\b(?:fail|not|never|died|dead|error|incomplete)"
)


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
    return told or _port_found_down(effect, scan) or _never_got_over(effect, scan) or effect


def _never_got_over(effect: Finding, scan: Scan) -> Finding | None:
    """What a rank said it would go on after, in mid-run, when no step came and the others waited for it in vain."""
    if effect.method not in TIMEOUTS:
        return None
    waited = {f.rank for f in scan.fatal("effect") if f.method in TIMEOUTS}
    for met in reversed(scan.withdrawn):
        before = met.line.file == effect.line.file and met.order < effect.order
        no_step_since = 0 < met.reports_before == scan.progress.reports
        if before and no_step_since and met.rank is not None and met.rank not in waited:
            return met if met.role == "cause" else None
    return None


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
    """The finding, with class, node and action as other lines have it; or that which led to it."""
    if finding.method == _GPU_LOST and _a_rank_met_a_cuda_error(scan):
        return replace(finding, failure_class="CUDAError", action="restart_exclude_node")
    if finding.method == "exception" and finding.failure_class == "RuntimeError":
        return _led_to_by(finding, scan) or finding
    if finding.failure_class == "LossSpike":
        return _of_the_first_bad_loss(finding, scan)
    if finding.method in MEMORY_KILLS:
        finding = _of_the_worker_that_was_killed(finding, scan)
    return with_whose_fault(finding, scan)


def _of_the_first_bad_loss(finding: Finding, scan: Scan) -> Finding:
    """Where the loss was lost, of a program that gives up on that some steps later."""
    began, line = scan.progress.loss_spike(), finding.line
    if began is None or began.file != line.file or began.number > line.number:
        return finding
    return replace(finding, line=began)


def _of_the_worker_that_was_killed(finding: Finding, scan: Scan) -> Finding:
    """The kernel's choice of a data worker, where the finding is the table that leads to it."""
    if "invoked oom-killer" not in finding.line.body:
        return finding
    for f in scan.fatal("decisive"):
        ahead = f.line.number - finding.line.number
        if f.method == WORKER_KILLED and 0 < ahead < _LINES_OF_A_TABLE:
            return f if f.line.file == finding.line.file else finding
    return finding


def _led_to_by(finding: Finding, scan: Scan) -> Finding | None:
    """What the same rank met again and again, the last time, before it gave up in words of its own."""
    recent = [f for f in scan.findings if scan.survival.just_before_the_end(f)] + scan.asides
    before = [f for f in recent if f.rank == finding.rank and f.order < finding.order]
    met = [f for f in before if f.failure_class in _OUTSIDE]
    last = max(met, key=lambda f: f.order, default=None)
    return last if len(met) >= _AGAIN_AND_AGAIN else _of_earlier_work(finding, scan)


def _of_earlier_work(finding: Finding, scan: Scan) -> Finding | None:
    """The error of a thread that training did not wait for, when it stops because that work was never done."""
    if _EARLIER_WORK.search(finding.line.body) is None:
        return None
    before = [f for f in scan.findings if f.rank == finding.rank and f.order < finding.order]
    met = [f for f in before if f.failure_class in (*_OUTSIDE, "OSError") and f.role == "cause"]
    return met[-1] if met else None


def _a_rank_met_a_cuda_error(scan: Scan) -> bool:
    """Whether the GPU alone is gone: of a node that is gone, no rank says anything."""
    return any(f.failure_class == "CUDAError" for f in scan.fatal("cause"))
