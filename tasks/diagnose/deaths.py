"""Verdicts by how processes died: what torchrun saw of its workers, where the logs say little else."""

from __future__ import annotations

import os
from pathlib import Path

from configs.records import ActionKind, AttemptRecord, Verdict
from tasks.diagnose.cancels import OF_A_LOST_PEER
from tasks.diagnose.host_names import is_loopback
from tasks.diagnose.logs import LogLine
from tasks.diagnose.scan import Scan
from tasks.diagnose.torchrun import RankFailure, signal_name
from tasks.diagnose.verdicts import make_verdict

_OUTSIDE_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
_TAIL_BYTES = 1 << 14
_LAST_LINES = 3


def verdict_on_silent_exit(death: RankFailure, scan: Scan) -> Verdict:
    """A rank that ended itself and said nothing that is known."""
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


def verdict_on_last_word(folder: Path, scan: Scan) -> Verdict | None:
    """A rank that ended itself over an error of its own that no rule knows, when others only miss it.

    A rank takes its time to leave: its peers may die before it, so that torchrun ends it. `folder` holds
    the logs, one a rank.
    """
    word, effects = scan.suspicious, scan.fatal("effect")
    if word is None or word.rank is None or any(f.rank in (None, word.rank) for f in effects):
        return None
    if any(f.method not in OF_A_LOST_PEER for f in effects):
        return None
    with open(folder / word.file, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        last = file.read().splitlines()[-_LAST_LINES:]
    if not any(line.strip().endswith(word.body.strip().encode()) for line in last):
        return None
    said = f"the last that rank {word.rank} says, and the others miss it"
    return make_verdict(
        "Unknown",
        method="rank_exited",
        confidence=0.3,
        root=word,
        rank=word.rank,
        evidence=[said, *(f.line for f in effects[:2])],
    )


def verdict_on_signal(death: RankFailure, scan: Scan, *, own_job: bool) -> Verdict:
    """A rank that a signal ended, with no word of its own about why.

    `own_job`: one of Overland's, whose launcher tells of memory limits: there a kill is somebody's.
    In any other log, the kernel's memory killer is by far the likeliest to send SIGKILL.
    """
    name = death.signal_name
    if name not in _OUTSIDE_SIGNALS:
        return _of_crash(death, scan, own_job=own_job)
    effects = [f.line for f in scan.fatal("effect")[:2]]
    said = f"{death.who} was ended by {name}; nothing in the logs says who sent it"
    if name == "SIGKILL" and not own_job:
        return make_verdict(
            "CgroupOOM",
            method="rank_killed",
            confidence=0.45,
            root=death.line,
            rank=death.rank,
            node=host_of(death),
            evidence=[said, *effects],
            mitigation="Most likely the host's memory ran out: look for the kernel's memory killer in the "
            "node's log, and ask for more memory or use fewer data workers.",
        )
    return make_verdict(
        "NodeFailure",
        method="rank_killed",
        confidence=0.7 if own_job else 0.4,
        root=death.line,
        rank=death.rank,
        node=host_of(death),
        action="restart_same_nodes",
        evidence=[said, *effects],
        mitigation="Look in the node's system log (out-of-memory killer, an operator) for who "
        "ended the process. The run continues from the last checkpoint.",
    )


def _of_crash(death: RankFailure, scan: Scan, *, own_job: bool) -> Verdict:
    """A crash in native code. One before the first step is the installation's, and comes back."""
    crash = scan.crashes.get(death.rank) or scan.crashes.get(None)
    where = "its stack is in its log" if crash else "nothing in the logs says where"
    at_start = scan.progress.steps_seen == 0 and not own_job
    action: ActionKind = "fix_by_user" if at_start else "restart_same_nodes"
    return make_verdict(
        "RuntimeError",
        method="rank_crashed",
        confidence=0.6,
        root=crash or death.line,
        rank=death.rank,
        action=action,
        evidence=[
            f"{death.who} crashed in native code ({death.signal_name}); {where}",
            death.line,
            *(f.line for f in scan.fatal("effect")[:2]),
        ],
        mitigation="Once may be chance. When it returns, read the stack at the end of the rank's log, "
        "and check the node's memory if it is always the same node.",
    )


def host_of(death: RankFailure) -> str | None:
    """Host of the worker, when torchrun's report names one that means something elsewhere."""
    return None if death.host is None or is_loopback(death.host) else death.host


def _last_word(death: RankFailure, scan: Scan) -> LogLine:
    """A line that speaks of an error, or of leaving, and may be the rank's own; else torchrun's."""
    steps = scan.progress.steps_in[death.line.file]
    words = (scan.suspicious, scan.watchers.parting.before(death.line, steps))
    own = (word for word in words if word is not None and word.rank in (None, death.rank))
    return next(own, death.line)


def verdict_on_job_signal(record: AttemptRecord) -> Verdict | None:
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
