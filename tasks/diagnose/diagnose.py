"""Logs and the attempt's record -> verdict: what failed, where, why, and what to do about it.

Reads attempts/N/rank_*.log, job/launcher.log, job/stacks/ and events.jsonl; writes nothing.

How the job ended (completed, over an anomaly, hung, ended by the scheduler) is known from its events
and its record and comes before any text. Then, out of the logs, in this order:

1. what hardware or scheduler say, whenever it was printed (but a scheduler that ends a job long after
   its own failure is no cause);
2. the first error of any rank that is no mere effect of another rank's death; of errors in several
   files without times, that of the rank that torchrun saw die first;
3. a rank that a signal ended and that says nothing;
4. a loss that left its range, effects (a peer is gone, a collective timed out), silence.

What none of this explains is Unknown: the verdict quotes what there is and guesses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from configs.events import CheckpointEvent, EndEvent, Event
from configs.records import ActionKind, AttemptRecord, Verdict
from configs.rundir import AttemptDir
from tasks.diagnose.anomalies import verdict_on_anomaly
from tasks.diagnose.cancels import (
    CANCELLED,
    OF_A_LOST_PEER,
    ended_by_the_books,
    without_what_comes_of_a_cancel,
)
from tasks.diagnose.causes import amended, behind_effect, told_and_mentioned
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.deaths import (
    verdict_on_job_signal,
    verdict_on_last_word,
    verdict_on_signal,
    verdict_on_silent_exit,
)
from tasks.diagnose.endings import (
    hang,
    verdict_on_capture,
    verdict_on_nothing,
    verdict_on_own_stop,
    verdict_on_spike,
    verdict_on_success,
)
from tasks.diagnose.findings import Finding
from tasks.diagnose.launcher_words import verdict_on_launchers_word
from tasks.diagnose.learned_verdict import with_learned_rules
from tasks.diagnose.logs import LogLine, attempt_log_files
from tasks.diagnose.other_machines import is_of_another_machine
from tasks.diagnose.place import (
    TIMEOUTS,
    names_a_peer,
    node_of,
    one_host,
    rank_of,
    stuck_ranks,
    who_is_missing,
)
from tasks.diagnose.rules import Rule
from tasks.diagnose.scan import Scan
from tasks.diagnose.scan_files import scan_files
from tasks.diagnose.sources import source_of
from tasks.diagnose.stacks import verdict_on_hang
from tasks.diagnose.torchrun import RankFailure
from tasks.diagnose.verdicts import DECISIVE_CONFIDENCE, make_verdict, with_notes

_CLASS_OF_STATE = {
    "TIMEOUT": "SlurmTimeLimit",
    "PREEMPTED": "SlurmPreempted",
    "OUT_OF_MEMORY": "CgroupOOM",
    "NODE_FAIL": "NodeFailure",
    "CANCELLED": "SlurmCancelled",
}
_CONFIDENCE = {"decisive": DECISIVE_CONFIDENCE, "cause": 0.85, "effect": 0.6}
_EXCEPTION_CONFIDENCE = 0.8
_ASIDE_CONFIDENCE = 0.4
_ENDS_THE_JOB = ("SlurmTimeLimit", "SlurmPreempted")
_EXIT_OF_AN_EXCEPTION = 1
"""Python's own: a rank that lost its peer exits so too."""
_CLEARED_AWAY_S = 120.0
"""A scheduler that ends a job that much after its own failure ends what was dead already."""


def diagnose_attempt(
    attempt: AttemptDir, record: AttemptRecord, learned: Sequence[Rule] = ()
) -> Verdict:
    """Why an ended attempt ended. Works with any of its files missing.

    `learned`: rules that were learned from failures.
    """
    if record.outcome == "completed":
        return make_verdict("NoFailure", method="launcher", confidence=1.0)
    if (verdict := verdict_on_anomaly(attempt)) is not None:
        return _on_only_node(verdict, record)
    if (verdict := verdict_on_hang(attempt, record)) is not None:
        return _on_only_node(verdict, record)
    files = attempt_log_files(attempt.path)
    sources = [source_of(f, str(f.relative_to(attempt.path))) for f in files]
    scan = scan_files(sources, _handled_errors(attempt.events()), learned)
    scan.settle()
    verdict = (
        _from_record(record, scan)
        or _from_logs(scan, own_job=True)
        or verdict_on_job_signal(record)
    )
    if verdict is not None and verdict.method in OF_A_LOST_PEER:
        verdict = verdict_on_last_word(attempt.path, scan) or verdict
    verdict = with_learned_rules(verdict or verdict_on_nothing(scan), scan, failed=True)
    return with_notes(_on_only_node(verdict, record), scan.notes)


def diagnose_files(paths: list[Path]) -> Verdict:
    """Why a job failed (or that it did not), by its log files alone."""
    return diagnose_scan(scan_files([source_of(path, path.name) for path in paths]))


def diagnose_scan(scan: Scan) -> Verdict:
    """The same for logs that have been scanned."""
    scan.settle()
    verdict = (
        verdict_on_success(scan)
        or _from_logs(scan, own_job=False)
        or verdict_on_spike(scan)
        or verdict_on_capture(scan)
        or _from_asides(scan)
        or verdict_on_nothing(scan)
    )
    return with_notes(with_learned_rules(verdict, scan, failed=False), scan.notes)


def _from_record(record: AttemptRecord, scan: Scan) -> Verdict | None:
    """What the monitor and the launcher know for certain."""
    hints = [finding.line for finding in _best_findings(scan)]
    if record.hung:
        ranks = stuck_ranks(scan)
        return make_verdict(
            "Hang",
            method="monitor",
            confidence=0.9,
            rank=min(ranks) if len(ranks) == 1 else None,
            evidence=[f"monitor: {record.reason}", *hints],
        )
    state = record.reason.partition(" ")[0]
    if record.outcome == "cancelled":
        state = "CANCELLED"
    if (verdict := verdict_on_launchers_word(record)) is not None:
        return verdict
    if state not in _CLASS_OF_STATE:
        return None
    return make_verdict(
        _CLASS_OF_STATE[state],
        method="launcher",
        confidence=0.95,
        evidence=[f"launcher: {record.reason or state}", *hints],
    )


def _from_logs(scan: Scan, *, own_job: bool) -> Verdict | None:
    causes, mentioned = told_and_mentioned(scan)
    for decisive in scan.fatal("decisive"):
        if not (_long_after(decisive, causes) or is_of_another_machine(decisive, scan)):
            return _of_finding(decisive, scan)
    return (
        _from_first_death(scan, causes, own_job=own_job)
        or next((_of_finding(cause, scan) for cause in causes), None)
        or _from_told_to_stop(scan)
        or _from_effects(scan)
        or next((_of_finding(cause, scan) for cause in mentioned), None)
    )


def _long_after(decisive: Finding, causes: list[Finding]) -> bool:
    """Whether the scheduler only cleared away a job that had failed long before."""
    if decisive.failure_class not in _ENDS_THE_JOB or decisive.time is None:
        return False
    first = next((c for c in causes if c.time is not None), None)
    return first is not None and decisive.time - (first.time or 0.0) > _CLEARED_AWAY_S


def _from_first_death(scan: Scan, causes: list[Finding], *, own_job: bool) -> Verdict | None:
    """By the worker that died first and not by torchrun's hand, if that explains anything.

    torchrun looks only now and then, so where lines or times tell the order, they are believed.
    """
    ordered = len({c.line.file for c in causes}) == 1 or all(c.time is not None for c in causes)
    effects = [f for f in scan.fatal("effect") if f.method not in CANCELLED]
    own_words = {f.rank for f in (*causes, *effects)}
    for death in scan.torchrun.own_deaths():
        for cause in causes[: 1 if ordered and not own_job else None]:
            if death.rank is not None and cause.rank == death.rank:
                return _of_finding(cause, scan, death)
        silent = death.rank not in own_words and None not in own_words
        told = causes or (death.rank is None and effects)
        if death.signal_name == "SIGABRT" and told and not own_job:
            continue  # as the watchdogs of ranks end that wait for another
        if death.signal_name is not None and (silent or death.signal_name != "SIGABRT"):
            if causes and not silent:
                return None
            return verdict_on_signal(death, scan, own_job=own_job)
        if silent and not causes and (death.exit_code != _EXIT_OF_AN_EXCEPTION or not effects):
            return _from_withdrawn(scan, death) or verdict_on_silent_exit(death, scan)
    return None


def _from_told_to_stop(scan: Scan) -> Verdict | None:
    """torchrun itself was told to stop and no one says why: what ranks print then are effects."""
    line, effects = scan.torchrun.told_to_stop, scan.fatal("effect")
    if line is None or any(f.method in CANCELLED for f in effects):
        return None
    if any(f.line.file == line.file and f.line.number < line.number for f in effects):
        return None
    evidence = ["the whole job was told to stop from outside; nothing in the logs says by whom"]
    return make_verdict(
        "Unknown", method="job_signalled", confidence=0.3, root=line, evidence=evidence
    )


def _from_effects(scan: Scan) -> Verdict | None:
    """What is known of a failure by its effects alone."""
    effects = without_what_comes_of_a_cancel(scan)
    if (ending := ended_by_the_books(scan)) is not None:
        return _of_finding(ending, scan)
    others = [f for f in effects if f.method not in CANCELLED]
    if others:
        told = verdict_on_own_stop(scan, others)
        return told or _of_finding(behind_effect(others[0], scan), scan)
    if not effects:
        return None
    silence_s = scan.progress.silence_before(effects[0].line)
    if silence_s is not None:
        said = f"training had done nothing for {silence_s:.0f} s when the job was ended"
        return hang(scan, said, effects[0].line)
    return verdict_on_spike(scan) or _of_finding(effects[0], scan)


def _from_asides(scan: Scan) -> Verdict | None:
    """An error that its program set aside, when nothing else explains a job that a launcher saw fail."""
    if scan.survival.failed_exit() is None:
        return _from_withdrawn(scan)
    raised = [
        f for f in scan.findings if f.method == "exception" and scan.survival.just_before_the_end(f)
    ]
    last = max([*scan.asides, *raised], key=lambda f: f.order, default=None)
    if last is None:
        return None
    return _of_finding(last, scan).model_copy(update={"confidence": _ASIDE_CONFIDENCE})


def _from_withdrawn(scan: Scan, death: RankFailure | None = None) -> Verdict | None:
    """An error that seemed to be dealt with, but nothing went on after it; of the rank that died, if one did."""
    ranks = () if death is None else (None, death.rank)
    fatal = (f for f in scan.withdrawn[::-1] if not scan.survived(f))
    last = next((f for f in fatal if not ranks or f.rank in ranks), None)
    if last is None:
        return None
    return _of_finding(last, scan).model_copy(update={"confidence": _ASIDE_CONFIDENCE})


def _of_finding(finding: Finding, scan: Scan, death: RankFailure | None = None) -> Verdict:
    finding = amended(finding, scan)
    confidence = _CONFIDENCE[finding.role]
    if finding.method == "exception":
        confidence = _EXCEPTION_CONFIDENCE
    details = scan.watchers.continued.after(finding.line)
    evidence: list[str | LogLine] = [line for line in (details, death and death.line) if line]
    rank, node = rank_of(finding, scan), node_of(finding, scan)
    action: ActionKind | None = finding.action
    if finding.role == "effect":
        rank = None
        action = "restart_exclude_node" if names_a_peer(finding, scan) else action
    if finding.failure_class == "Hang" and node is None:
        ranks, node = who_is_missing(scan)
        rank = min(ranks) if len(ranks) == 1 else rank
        action = "restart_exclude_node" if node else action
    waits_for_data = action == "fix_by_user"
    if finding.method in TIMEOUTS and not waits_for_data and (ranks := stuck_ranks(scan)):
        rank, node = min(ranks), one_host(scan, ranks)
        who = ", ".join(str(r) for r in sorted(ranks)[:8])
        evidence.append(f"rank {who} did not come to the collective: the others waited for it")
        action = "restart_exclude_node" if node else action
    return make_verdict(
        finding.failure_class,
        method=finding.method,
        confidence=confidence,
        root=finding.line,
        rank=rank,
        node=node,
        action=action,
        evidence=evidence,
        mitigation=finding.mitigation,
    )


def _best_findings(scan: Scan) -> list[Finding]:
    """A few findings that stand beside what the record says."""
    return [*scan.fatal("decisive"), *scan.fatal("cause"), *scan.fatal("effect")][:3]


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
