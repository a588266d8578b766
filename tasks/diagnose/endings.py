"""Verdicts on jobs without an error of their own: ended well, still running, silent, or learning nothing."""

from __future__ import annotations

import math

from configs.records import ActionKind, Verdict
from tasks.diagnose.findings import Finding
from tasks.diagnose.logs import LogLine
from tasks.diagnose.own_stops import needs_a_person
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.place import who_is_missing
from tasks.diagnose.progress import SILENCE_S
from tasks.diagnose.reports import loss_of
from tasks.diagnose.scan import Scan, is_failed_exit
from tasks.diagnose.survival import NOTICES, STEPS_AFTER
from tasks.diagnose.verdicts import make_verdict

_OF_EMPTY_LOGS = "Look at the scheduler's record of the job and the nodes' system logs."

_OF_SILENT_LOGS = "Nothing in the logs tells a cause: look at the end of each rank's log and at the scheduler's record of the job."
_TERMINATED = compile_pattern(
    r"^(?:\S*sh: line \d+: +\d+ )?Terminated\b(?:\s*$|.*\b(?:python|torchrun|srun|mpi(?:run|exec)|deepspeed|accelerate))"
)

_ENVIRONMENT = compile_pattern(
    r"(?i)\blmod has detected|\bunable to locate a modulefile|\bModuleCmd_Load\b|\bmodules?(?:\(s\))? are unknown\b|"
    r"\bcannot be loaded as requested|\bmodule\b.{0,40}\bnot (?:found|available)\b"
)
"""Environment modules that are asked for and not there: nothing has begun, and nothing will."""


def verdict_on_success(scan: Scan) -> Verdict | None:
    """Ended well: by its exit code, or by its own words with no failure after them.

    An exit code of 0 proves nothing when a launcher has reported a failure that training did not get
    over: scripts lose exit codes in pipes. Training that has said that it is done has its result,
    though processes may crash as they leave.
    """
    ended_well, completed = scan.progress.success(), scan.progress.completed
    spike = scan.progress.loss_spike()
    if completed is None and spike is not None:
        return None  # What it has trained is of no use, though no program failed.
    if spike is not None and not math.isfinite(loss_of(spike) or 0.0):
        return verdict_on_spike(scan)  # The same, whatever the program says.
    if completed is None and any(f.method in NOTICES for f in scan.fatal("decisive")):
        return None  # It saved and left when it was told to.
    failed = scan.survival.failed_exit() is not None
    if ended_well is not None and (completed is not None or not failed):
        return make_verdict("NoFailure", method="log", confidence=0.95, evidence=[ended_well])
    told = [f for f in scan.fatal("cause") if not f.in_passing]
    if completed is None or scan.fatal("decisive") or told:
        return None
    return make_verdict("NoFailure", method="completed", confidence=0.7, evidence=[completed])


def verdict_on_spike(scan: Scan) -> Verdict | None:
    """A loss that left its range and did not come back."""
    spike = scan.progress.loss_spike()
    if spike is None:
        return None
    return make_verdict("LossSpike", method="loss_series", confidence=0.8, root=spike)


def verdict_on_capture(scan: Scan) -> Verdict | None:
    """A job that still ran when its log was taken: silent for long, or as it should be."""
    capture = scan.progress.capture()
    if (stuck := _verdict_on_a_rank_behind(scan)) is not None:
        return stuck
    if capture is None:
        return _verdict_on_silent_end(scan) or _verdict_on_watchers(scan)
    line, silence_s = capture
    if silence_s <= SILENCE_S:
        return make_verdict("NoFailure", method="still_running", confidence=0.8, evidence=[line])
    return hang(scan, f"the job still ran and had done nothing for {silence_s:.0f} s", line)


def _verdict_on_a_rank_behind(scan: Scan) -> Verdict | None:
    """No error, no end, and steps do not go on: one rank was not heard of for long, or is steps behind."""
    if scan.suspicious is not None or scan.survival.failed_exit() is not None:
        return None
    heartbeats = scan.watchers.heartbeats
    file, steps = heartbeats.seen
    if heartbeats.silent_rank() is not None and scan.progress.steps_in[file] - steps < STEPS_AFTER:
        return hang(
            scan, "one rank was not heard of for far longer than all others", _last_line(scan)
        )
    if scan.progress.by_rank.stands():
        return hang(
            scan,
            "ranks report the same step again and again, and some are behind",
            _last_line(scan),
        )
    return None


def _verdict_on_silent_end(scan: Scan) -> Verdict | None:
    """No error, no end, and only monitors wrote for long."""
    silent = scan.progress.silent_end()
    if silent is None or scan.suspicious is not None or scan.survival.failed_exit() is not None:
        return None
    line, silence_s = silent
    return hang(scan, f"training did nothing in the last {silence_s:.0f} s of its log", line)


def _verdict_on_watchers(scan: Scan) -> Verdict | None:
    """No error, no end, but somebody has looked: ranks that are behind, a host that does nothing for long."""
    if scan.suspicious is not None or scan.survival.failed_exit() is not None:
        return None
    steps_in = scan.progress.steps_in
    if (line := scan.watchers.ras.line) is not None and scan.watchers.ras.steps == steps_in[
        line.file
    ]:
        return hang(scan, "NCCL's own report says which rank does not come", line, root=True)
    file, steps = scan.watchers.stacks.seen
    if scan.watchers.stacks.odd_one() is not None and steps_in[file] == steps:
        odd = "one process does something else than all others that were looked at"
        return hang(scan, odd, _last_line(scan))
    if (idle := scan.idle_hosts.idle_without_a_step(steps_in)) is None:
        return None
    alone = f"{idle} does nothing while all others are busy, and no step is reported"
    return hang(scan, alone, _last_line(scan))


def _last_line(scan: Scan) -> LogLine:
    return next(tail[-1] for tail in reversed(scan.progress.tails.values()))


def hang(scan: Scan, said: str, line: LogLine, *, root: bool = False) -> Verdict:
    """A hang, with the rank that is behind if one is; `root`: the line tells the cause."""
    ranks, node = who_is_missing(scan)
    return make_verdict(
        "Hang",
        method="silence",
        confidence=0.8,
        root=line if root else None,
        rank=min(ranks) if len(ranks) == 1 else None,
        node=node,
        action="restart_exclude_node" if node else None,
        evidence=[said, line],
    )


def verdict_on_nothing(scan: Scan) -> Verdict:
    """Unknown, with the first line that speaks of an error."""
    if not scan.order:
        return _unknown(["the logs hold no line"], _OF_EMPTY_LOGS)
    stop = scan.watchers.stops.at_the_end(scan.progress)
    word = scan.suspicious
    if stop is not None and (word is None or is_failed_exit(word)):
        return _stopped(stop, 0.2)
    if word is not None:
        action: ActionKind | None = "fix_by_user" if _ENVIRONMENT.search(word.body) else None
        return make_verdict("Unknown", method="none", confidence=0.1, root=word, action=action)
    if (ended := _told_to_end(scan)) is not None:
        said = ["the job was told to stop from outside; nothing in the logs says by whom"]
        return make_verdict(
            "Unknown",
            method="job_signalled",
            confidence=0.3,
            root=ended,
            evidence=said,
            mitigation=_OF_EMPTY_LOGS,
        )
    return _unknown([_passed_over(scan), *_shortened(scan)], _OF_SILENT_LOGS)


def verdict_on_own_stop(scan: Scan, effects: list[Finding]) -> Verdict | None:
    """A run that was stopped in the words of who stopped it; all that ranks say afterwards comes of it."""
    stop = scan.watchers.stops.before(effects, scan.progress)
    return None if stop is None else _stopped(stop, 0.4)


def _stopped(stop: LogLine, confidence: float) -> Verdict:
    action: ActionKind = "fix_by_user" if needs_a_person(stop) else "resubmit_later"
    return make_verdict(
        "Unknown", method="own_stop", confidence=confidence, root=stop, action=action
    )


def _unknown(said: list[str], mitigation: str) -> Verdict:
    return make_verdict(
        "Unknown", method="none", confidence=0.1, evidence=said, mitigation=mitigation
    )


def _told_to_end(scan: Scan) -> LogLine | None:
    """A shell's word, at the end of a file, that the program was ended by SIGTERM."""
    ends = (tail[-1] for tail in scan.progress.tails.values() if tail)
    return next((line for line in ends if _TERMINATED.search(line.body)), None)


def _passed_over(scan: Scan) -> str:
    """Why no error is named: there is none, or training went on after it."""
    past = [f.line for f in scan.findings if scan.survived(f)]
    if not past:
        return "no line in the logs speaks of an error"
    return f"passed over, since training went on after it: {past[-1].quote}"


def _shortened(scan: Scan) -> list[str]:
    line = scan.shortened
    if line is None:
        return []
    return [f"{line.file}:{line.number} is very long: its middle was not read"]
