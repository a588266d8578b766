"""What a learned rule may say: a class, where written rules know none and something else shows a failure.

Such a rule is a language model's word, checked but not understood. It excludes no node and restarts
nothing elsewhere, and a log that shows no other sign of a failure stays what it is.
"""

from __future__ import annotations

from configs.records import ActionKind, Verdict
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.findings import Finding
from tasks.diagnose.scan import Scan
from tasks.diagnose.verdicts import CAREFUL_ACTIONS, make_verdict

_CONFIDENCE = 0.5
"""As much as a past case's: a model need not be asked again."""


def with_learned_rules(verdict: Verdict, scan: Scan, *, failed: bool) -> Verdict:
    """The verdict, or a learned rule's where it is Unknown. `failed`: the job is known to have failed."""
    if verdict.failure_class != "Unknown":
        return verdict
    found = scan.fatal("learned")
    if not found or not (failed or _other_sign(scan)):
        return verdict
    first = found[0]
    seen = verdict.evidence if verdict.root_cause_line is not None else ()
    known = CLASSES[first.failure_class]
    action: ActionKind = known.action if known.action in CAREFUL_ACTIONS else verdict.action
    return make_verdict(
        first.failure_class,
        method=first.method,
        confidence=_CONFIDENCE,
        root=first.line,
        rank=verdict.faulty_rank if verdict.faulty_rank is not None else _only_rank(found),
        node=verdict.faulty_node,
        action=action,
        evidence=["by a rule that a language model proposed", *seen],
    )


def _other_sign(scan: Scan) -> bool:
    """Whether anything that no learned rule has found speaks of a failure."""
    others = (f for f in scan.findings if f.role != "learned" and not scan.survived(f))
    return (
        scan.survival.failed_exit() is not None
        or scan.suspicious is not None
        or bool(scan.crashes)
        or next(iter(scan.torchrun.own_deaths()), None) is not None
        or next(others, None) is not None
    )


def _only_rank(found: list[Finding]) -> int | None:
    ranks = {f.line.rank for f in found}
    return ranks.pop() if len(ranks) == 1 else None
