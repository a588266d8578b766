"""When rules are unsure: past cases that read like the failure, then a language model if one is configured."""

from __future__ import annotations

from collections.abc import Sequence

from configs.diagnose_schema import DiagnoseConfig
from configs.records import Verdict
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.compressed import Compressed
from tasks.diagnose.failure_agent import OpenFailure, ask_about_failure, is_unsure
from tasks.diagnose.learned_rules import RuleBook
from tasks.diagnose.model_protocol import Model
from tasks.diagnose.rendering import render
from tasks.diagnose.retrieval import ALIKE, WORTH_SHOWING, Neighbour, nearest
from tasks.diagnose.verdicts import CAREFUL_ACTIONS, MAX_EVIDENCE

_NEVER_BY_LIKENESS = frozenset({"NoFailure", "Unknown"})
_RETRIEVED_CONFIDENCE = 0.5


def look_further(
    verdict: Verdict, logs: Compressed, settings: DiagnoseConfig, model: Model | None = None
) -> Verdict:
    """The verdict, or a better founded one when it is unsure.

    `settings` say where past cases are and how they are compared.
    """
    if not is_unsure(verdict):
        return verdict
    store = settings.resolved_store()
    near = nearest(render(logs), settings.neighbours, store, model=settings.embedding_model)
    if verdict.failure_class == "Unknown" and _is_alike(near):
        return _as_before(verdict, near)
    verdict = _with_evidence(verdict, near)
    if model is None:
        return verdict
    failure = OpenFailure(verdict, logs.kept, near)
    return ask_about_failure(
        model, failure, book=RuleBook(store), max_prompt_chars=settings.max_prompt_chars
    )


def _is_alike(near: Sequence[Neighbour]) -> bool:
    return bool(
        near
        and near[0].similarity >= ALIKE
        and near[0].case.failure_class not in _NEVER_BY_LIKENESS
    )


def _as_before(verdict: Verdict, near: Sequence[Neighbour]) -> Verdict:
    """The class of the case that reads like this failure, with what resolved it."""
    known = CLASSES[near[0].case.failure_class]
    found = verdict.model_copy(
        update={
            "failure_class": known.name,
            "category": known.category,
            "action": known.action if known.action in CAREFUL_ACTIONS else verdict.action,
            "confidence": _RETRIEVED_CONFIDENCE,
            "method": "past_case",
            "mitigation": known.mitigation,
        }
    )
    return _with_evidence(found, near)


def _with_evidence(verdict: Verdict, near: Sequence[Neighbour]) -> Verdict:
    quotes = [n.quote for n in near if n.similarity >= WORTH_SHOWING]
    evidence = list(dict.fromkeys([*verdict.evidence[:3], *quotes]))[:MAX_EVIDENCE]
    return verdict.model_copy(update={"evidence": evidence})
