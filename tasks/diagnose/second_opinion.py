"""What is tried when the written rules leave a failure open: learned rules, past cases, a language model.

In that order, each only when what came before is unsure. A verdict that is sure passes unchanged, and
nothing of this is loaded for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from configs.diagnose_schema import DiagnoseConfig
from configs.records import Verdict
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.failure_agent import ask_about_failure, is_unsure
from tasks.diagnose.language import Model
from tasks.diagnose.learned_rules import RuleBook
from tasks.diagnose.logs import LogLine
from tasks.diagnose.redact import redact
from tasks.diagnose.retrieval import Neighbour, open_cases
from tasks.diagnose.rules import RuleSet
from tasks.diagnose.verdicts import make_verdict

_LEARNED_CONFIDENCE = 0.55
_RETRIEVED_CONFIDENCE = 0.5
_SURE_SIMILARITY = 0.5
"""Of logs that no rule knew, none that was truly unknown reached 0.31; above 0.5 four of five are right."""

_MAX_EVIDENCE = 6
_SAFE_ACTIONS = ("fix_by_user", "resubmit_later")


def second_opinion(
    verdict: Verdict,
    compressed: Callable[[], Sequence[LogLine]],
    config: DiagnoseConfig | None = None,
    model: Model | None = None,
) -> Verdict:
    """The verdict, or a better one when it is unsure. `compressed` gives the lines that compression keeps.

    Never raises: what cannot be read or asked is said in the evidence.
    """
    if not is_unsure(verdict):
        return verdict
    config = config or DiagnoseConfig()
    folder = config.resolved_store()
    lines = list(compressed())
    book: RuleBook | None = None
    neighbours: list[Neighbour] = []
    problems: list[str] = []
    with _noted(problems, "learned rules"):
        book = RuleBook(folder)
        learned = _by_learned_rule(verdict, lines, book)
        if learned is not None:
            return learned
    with _noted(problems, "past cases"), open_cases(folder, config.embedding_model) as store:
        neighbours = store.nearest("\n".join(line.body for line in lines), config.neighbours)
    found = _by_past_cases(verdict, lines, neighbours)
    if model is not None and is_unsure(found):
        found = ask_about_failure(
            model, lines, neighbours, found, book=book, max_prompt_chars=config.max_prompt_chars
        )
    return _with_evidence(found, problems)


def _by_learned_rule(verdict: Verdict, lines: Sequence[LogLine], book: RuleBook) -> Verdict | None:
    rules = [rule.as_rule() for rule in book.rules()]
    if not rules:
        return None
    known = RuleSet(rules)
    for order, line in enumerate(lines):
        finding = known.match(line, order)
        if finding is not None:
            rule = next(rule for rule in rules if rule.id == finding.method)
            return make_verdict(
                finding.failure_class,
                method=finding.method,
                confidence=_LEARNED_CONFIDENCE,
                root=line,
                rank=line.rank if line.rank is not None else verdict.faulty_rank,
                node=verdict.faulty_node,
                action=_careful_action(finding.failure_class, verdict),
                evidence=[f"by a learned rule: {rule.note}"],
            )
    return None


def _by_past_cases(
    verdict: Verdict, lines: Sequence[LogLine], neighbours: Sequence[Neighbour]
) -> Verdict:
    """The nearest case's class when it is near; else the verdict with the cases beside it."""
    quotes = [neighbour.quote for neighbour in neighbours]
    if not neighbours or neighbours[0].similarity < _SURE_SIMILARITY:
        return _with_evidence(verdict, quotes[:2])
    best = neighbours[0].case.failure_class
    if best in ("NoFailure", "Unknown"):  # that a job succeeded is for the rules to see
        return _with_evidence(verdict, quotes[:2])
    root = next((line for line in lines if line.text.strip() == verdict.root_cause_text), None)
    found = make_verdict(
        best,
        method="past_cases",
        confidence=_RETRIEVED_CONFIDENCE,
        root=root,
        rank=verdict.faulty_rank,
        node=verdict.faulty_node,
        action=_careful_action(best, verdict),
        evidence=[n.quote for n in neighbours if n.case.failure_class == best],
    )
    return _with_evidence(found, verdict.evidence)


def _careful_action(failure_class: str, verdict: Verdict) -> Any:
    """The class's action where that is safe on thin evidence; else the open verdict's."""
    action = CLASSES[failure_class].action
    return action if action in _SAFE_ACTIONS else verdict.action


def _with_evidence(verdict: Verdict, more: Sequence[str]) -> Verdict:
    evidence = list(dict.fromkeys([*verdict.evidence, *more]))[:_MAX_EVIDENCE]
    return verdict.model_copy(update={"evidence": evidence})


@contextmanager
def _noted(problems: list[str], what: str) -> Iterator[None]:
    """A diagnosis goes on without what cannot be read, and says so."""
    try:
        yield
    except Exception as error:
        problems.append(f"{what} were left out: {type(error).__name__}: {redact(str(error))[:200]}")
