"""Puts a verdict together: class, place, evidence, action."""

from __future__ import annotations

from collections.abc import Sequence

from configs.records import ActionKind, Verdict
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.logs import LogLine, shortened

MAX_TEXT_CHARS = 1000
MAX_EVIDENCE = 6
DECISIVE_CONFIDENCE = 0.95
"""Of what hardware or a scheduler says."""
CAREFUL_ACTIONS: frozenset[ActionKind] = frozenset({"fix_by_user", "resubmit_later"})
"""What likeness, a model or a learned rule may decide alone: no node is excluded, no data skipped."""


def make_verdict(
    failure_class: str,
    *,
    method: str,
    confidence: float,
    root: LogLine | None = None,
    rank: int | None = None,
    node: str | None = None,
    action: ActionKind | None = None,
    evidence: Sequence[str | LogLine] = (),
    mitigation: str | None = None,
) -> Verdict:
    """A verdict of a class; the root line is quoted first, unless it is None."""
    known = CLASSES[failure_class]
    quotes = [] if root is None else [root.quote]
    quotes += [item.quote if isinstance(item, LogLine) else item for item in evidence]
    return Verdict(
        failure_class=failure_class,
        category=known.category,
        root_cause_file=root.file if root else None,
        root_cause_line=root.number if root else None,
        root_cause_text=shortened(root.text.strip(), MAX_TEXT_CHARS) if root else "",
        faulty_rank=rank,
        faulty_node=node,
        action=action or known.action,
        confidence=confidence,
        method=method,
        evidence=list(dict.fromkeys(quotes))[:MAX_EVIDENCE],
        mitigation=known.advice(action or known.action) if mitigation is None else mitigation,
    )


def with_notes(verdict: Verdict, notes: Sequence[str]) -> Verdict:
    """The verdict with what is to be known about how it was come to, as its last evidence."""
    if not notes:
        return verdict
    quotes = [line for line in verdict.evidence if line not in notes][: MAX_EVIDENCE - len(notes)]
    return verdict.model_copy(update={"evidence": [*quotes, *notes]})
