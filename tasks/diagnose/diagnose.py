"""Logs and the attempt's record -> verdict: what failed, where, why, and what to do about it.

Reads attempts/N/rank_*.log, job/launcher.log, job/stacks/ and events.jsonl; writes nothing.

How the job ended (completed, over an anomaly, hung, ended by the scheduler) is known from its events
and its record and comes before any text. Then, out of the logs, in this order:

1. what hardware or scheduler say, whenever it was printed;
2. the rank that died first, by torchrun's report: its own last error, or, when it was ended by a
   signal and says nothing, that signal;
3. the first error of any rank that is no mere effect of another rank's death;
4. effects (a peer is gone, a collective timed out), a loss that left its range, silence.

What none of this explains is Unknown: the verdict quotes what there is and guesses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from configs.events import CheckpointEvent, EndEvent, Event
from configs.records import AttemptRecord, Verdict
from configs.rundir import AttemptDir
from tasks.diagnose.anomalies import verdict_on_anomaly
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.findings import Finding
from tasks.diagnose.logs import LogLine, attempt_log_files, read_log
from tasks.diagnose.progress import SILENCE_S
from tasks.diagnose.rules import default_rules
from tasks.diagnose.scan import Scan
from tasks.diagnose.stacks import verdict_on_hang
from tasks.diagnose.torchrun import RankFailure, signal_name
from tasks.diagnose.verdicts import make_verdict

_CLASS_OF_STATE = {
    "TIMEOUT": "SlurmTimeLimit",
    "PREEMPTED": "SlurmPreempted",
    "OUT_OF_MEMORY": "CgroupOOM",
    "NODE_FAIL": "NodeFailure",
    "CANCELLED": "SlurmCancelled",
}
_CONFIDENCE = {"decisive": 0.95, "cause": 0.85, "effect": 0.6}
_EXCEPTION_CONFIDENCE = 0.8
_OUTSIDE_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
_TIMEOUTS = ("nccl_timeout", "collective_timeout")


def diagnose_attempt(attempt: AttemptDir, record: AttemptRecord) -> Verdict:
    """Why an ended attempt ended. Works with any of its files missing."""
    if record.outcome == "completed":
        return make_verdict("NoFailure", method="launcher", confidence=1.0)
    if (verdict := verdict_on_anomaly(attempt)) is not None:
        return _on_only_node(verdict, record)
    if (verdict := verdict_on_hang(attempt, record)) is not None:
        return _on_only_node(verdict, record)
    files = attempt_log_files(attempt.path)
    lines = chain.from_iterable(read_log(f, str(f.relative_to(attempt.path))) for f in files)
    scan = Scan(default_rules(), handled_errors=_handled_errors(attempt.events())).read(lines)
    verdict = _from_record(record, scan) or _from_logs(scan) or _from_job_signal(record)
    return _on_only_node(verdict or _unknown(scan), record)


def diagnose_files(paths: list[Path]) -> Verdict:
    """Why a job failed (or that it did not), by its log files alone."""
    return diagnose_lines(chain.from_iterable(read_log(path) for path in paths))


def diagnose_lines(lines: Iterable[LogLine]) -> Verdict:
    """The same for lines that are already read."""
    scan = Scan(default_rules()).read(lines)
    ended_well = scan.progress.success()
    if ended_well is not None:
        return make_verdict("NoFailure", method="log", confidence=0.95, evidence=[ended_well])
    return _from_logs(scan) or _from_training_output(scan) or _unknown(scan)


def _from_record(record: AttemptRecord, scan: Scan) -> Verdict | None:
    """What the monitor and the launcher know for certain."""
    hints = [finding.line for finding in _best_findings(scan)]
    if record.hung:
        return make_verdict(
            "Hang",
            method="monitor",
            confidence=0.9,
            rank=_stuck_rank(scan),
            evidence=[f"monitor: {record.reason}", *hints],
        )
    state = record.reason.partition(" ")[0]
    if record.outcome == "cancelled":
        state = "CANCELLED"
    if state not in _CLASS_OF_STATE:
        return None
    return make_verdict(
        _CLASS_OF_STATE[state],
        method="launcher",
        confidence=0.95,
        evidence=[f"launcher: {record.reason or state}", *hints],
    )


def _from_logs(scan: Scan) -> Verdict | None:
    for decisive in scan.fatal("decisive"):
        return _of_finding(decisive, scan)
    return (
        _from_first_death(scan)
        or next((_of_finding(cause, scan) for cause in scan.fatal("cause")), None)
        or _from_told_to_stop(scan)
        or next((_of_finding(effect, scan) for effect in scan.fatal("effect")), None)
    )


def _from_first_death(scan: Scan) -> Verdict | None:
    """By the worker that died first and not by torchrun's hand, if that explains anything."""
    causes = scan.fatal("cause")
    own_words = {f.rank for f in causes} | {f.rank for f in scan.fatal("effect")}
    for death in scan.torchrun.own_deaths():
        for cause in causes:
            if death.rank is not None and cause.rank == death.rank:
                return _of_finding(cause, scan, death)
        silent = death.rank not in own_words and None not in own_words
        if death.signal_name is not None and (silent or death.signal_name != "SIGABRT"):
            return None if causes and not silent else _of_signal(death, scan)
        if silent and not causes:
            return make_verdict(
                "Unknown",
                method="rank_exited",
                confidence=0.3,
                root=_last_word(death, scan),
                rank=death.rank,
                evidence=[
                    f"rank {death.rank} exited with code {death.exit_code} and no known error",
                    death.line,
                ],
            )
    return None


def _last_word(death: RankFailure, scan: Scan) -> LogLine:
    """A line that speaks of an error and may be the rank's own; else torchrun's."""
    word = scan.suspicious
    return word if word is not None and word.rank in (None, death.rank) else death.line


def _of_signal(death: RankFailure, scan: Scan) -> Verdict:
    """A rank that a signal ended, with no word of its own about why."""
    name = death.signal_name
    who = f"rank {death.rank}" if death.rank is not None else f"process {death.pid}"
    effects = [f.line for f in scan.fatal("effect")[:2]]
    if name in _OUTSIDE_SIGNALS:
        return make_verdict(
            "NodeFailure",
            method="rank_killed",
            confidence=0.7,
            root=death.line,
            rank=death.rank,
            node=_host_of(death),
            action="restart_same_nodes",
            evidence=[f"{who} was ended by {name}; nothing in the logs says who sent it", *effects],
            mitigation="Look in the node's system log (out-of-memory killer, an operator) for who "
            "ended the process. The run continues from the last checkpoint.",
        )
    crash = scan.crashes.get(death.rank)
    where = "its stack is in its log" if crash else "nothing in the logs says where"
    return make_verdict(
        "RuntimeError",
        method="rank_crashed",
        confidence=0.6,
        root=crash or death.line,
        rank=death.rank,
        action="restart_same_nodes",
        evidence=[f"{who} crashed in native code ({name}); {where}", death.line, *effects],
        mitigation="Once may be chance. When it returns, read the stack at the end of the rank's log, "
        "and check the node's memory if it is always the same node.",
    )


def _from_told_to_stop(scan: Scan) -> Verdict | None:
    """torchrun itself was told to stop and no one says why: what ranks print then are effects."""
    line = scan.torchrun.told_to_stop
    cancelled = any(f.method == "slurm_cancelled" for f in scan.fatal("effect"))
    earlier = any(
        f.line.file == line.file and f.line.number < line.number
        for f in scan.fatal("effect")
        if line is not None
    )
    if line is None or cancelled or earlier:
        return None
    evidence = ["the whole job was told to stop from outside; nothing in the logs says by whom"]
    return make_verdict(
        "Unknown", method="job_signalled", confidence=0.3, root=line, evidence=evidence
    )


def _from_job_signal(record: AttemptRecord) -> Verdict | None:
    """The launcher saw the whole job end by a signal, and the logs say nothing."""
    if record.signal is None:
        return None
    name = signal_name(record.signal)
    return make_verdict(
        "NodeFailure",
        method="job_killed",
        confidence=0.5,
        action="restart_same_nodes",
        evidence=[f"launcher: the job was ended by {name}; nothing in the logs says who sent it"],
    )


def _from_training_output(scan: Scan) -> Verdict | None:
    """No error at all: a loss out of its range, silence, or a run that simply goes on."""
    spike = scan.progress.loss_spike()
    if spike is not None:
        return make_verdict("LossSpike", method="loss_series", confidence=0.8, root=spike)
    capture = scan.progress.capture()
    if capture is None:
        return None
    line, silence_s = capture
    if silence_s <= SILENCE_S:
        return make_verdict("NoFailure", method="still_running", confidence=0.8, evidence=[line])
    rank = _stuck_rank(scan)
    node = scan.topology.host(None, rank)
    return make_verdict(
        "Hang",
        method="silence",
        confidence=0.8,
        rank=rank,
        node=node,
        action="restart_exclude_node" if node else None,
        evidence=[f"the job still ran and had written nothing for {silence_s:.0f} s", line],
    )


def _unknown(scan: Scan) -> Verdict:
    line = scan.suspicious
    evidence = [] if line else ["no line in the logs speaks of an error"]
    return make_verdict("Unknown", method="none", confidence=0.1, root=line, evidence=evidence)


def _of_finding(finding: Finding, scan: Scan, death: RankFailure | None = None) -> Verdict:
    known = CLASSES[finding.failure_class]
    node = None
    if finding.node is not None or known.node_local:
        node = scan.topology.host(finding.node, finding.rank)
    confidence = _CONFIDENCE[finding.role]
    if finding.method == "exception":
        confidence = _EXCEPTION_CONFIDENCE
    evidence: list[str | LogLine] = [death.line] if death else []
    rank = finding.rank if finding.role != "effect" else None
    if finding.method in _TIMEOUTS and (rank := _stuck_rank(scan)) is not None:
        evidence.append(f"rank {rank} reported no time-out: the others waited for it")
    return make_verdict(
        finding.failure_class,
        method=finding.method,
        confidence=confidence,
        root=finding.line,
        rank=rank,
        node=node,
        action=finding.action,
        evidence=evidence,
    )


def _best_findings(scan: Scan) -> list[Finding]:
    """A few findings that stand beside what the record says."""
    return [*scan.fatal("decisive"), *scan.fatal("cause"), *scan.fatal("effect")][:3]


def _stuck_rank(scan: Scan) -> int | None:
    """The rank that the others wait for: the one that reports no time-out, or is a step behind."""
    waiting = {f.rank for f in scan.fatal("effect") if f.method in _TIMEOUTS}
    silent = scan.ranks - waiting
    if waiting:
        return silent.pop() if len(silent) == 1 else None
    return scan.progress.laggard()


def _host_of(death: RankFailure) -> str | None:
    return death.host if death.host not in (None, "localhost", "127.0.0.1") else None


def _on_only_node(verdict: Verdict, record: AttemptRecord) -> Verdict:
    """Name the node of a fault that sits in a node, when the job ran on one alone."""
    local = CLASSES[verdict.failure_class].node_local
    if not local or verdict.faulty_node is not None or len(record.nodes) != 1:
        return verdict
    return verdict.model_copy(update={"faulty_node": record.nodes[0]})


def _handled_errors(events: list[Event]) -> list[str]:
    """Errors of saves that were given up: training went on, so they ended nothing.

    But for that of a job which has done its last step: for want of that checkpoint it fails.
    """
    end = next((event.step for event in events if isinstance(event, EndEvent)), None)
    saves = [event for event in events if isinstance(event, CheckpointEvent) and event.error]
    return [save.error for save in saves if save.step != end]
