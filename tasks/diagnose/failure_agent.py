"""Asks a language model about a failure that rules and past cases leave open.

Its answer counts only when it fits a strict schema, names a class of the list and its category, and
quotes lines that stand in the log. Anything else leaves the rules' verdict as it is, with the reason
among its evidence. It decides no more than a class: rank and node stay the rules', its advice is shown
only when it is harmless to follow, and its confidence stays low.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from configs.errors import ConfigError, LanguageModelError
from configs.records import ActionKind, Verdict
from tasks.diagnose.classes import CLASSES, RESTARTS, Category
from tasks.diagnose.learned_rules import RuleBook, checked_pattern, new_rule
from tasks.diagnose.logs import LogLine
from tasks.diagnose.model_prompts import MEANINGS, Excerpt, failure_messages
from tasks.diagnose.model_protocol import Model
from tasks.diagnose.patterns import Pattern, compile_pattern
from tasks.diagnose.redact import redact
from tasks.diagnose.retrieval import ALIKE, WORTH_SHOWING, Neighbour
from tasks.diagnose.routine import is_routine, matched_in_passing
from tasks.diagnose.verdicts import CAREFUL_ACTIONS, MAX_EVIDENCE, make_verdict

METHOD = "language_model"
UNSURE_BELOW = 0.5
"""A verdict of less confidence is worth a question."""

_SUPPORTED_CONFIDENCE = 0.6
_ALONE_CONFIDENCE = 0.4
_UNSAFE_ADVICE = (
    r"(?i)[a-z]+://|www\.|\b(?:curl|wget|sudo|rm|chmod|chown|mkfs|dd|eval|ssh|scp|nc|bash|sh|conda|apt|apt-get|"
    r"yum|dnf|npm|docker|kubectl|scancel|scontrol|systemctl|shutdown|reboot|base64)\b|\bpip[\d.]*\b|[|;&`$<>=\\]|"
    r"\s-{1,2}[a-z]|\bpassword|\btoken\b|\b\d{1,3}(?:\.\d{1,3}){3}\b|\S/\S"
)
_DOTTED = r"(?i)\b[a-z][\w-]*(?:\.[\w-]+)*\.[a-z]{2,24}\b"
_FILE_SUFFIXES = (".py", ".yaml", ".yml", ".json", ".log", ".txt", ".toml", ".pt", ".safetensors")
"""Of dotted names that are no host."""
_TERMINAL_COMMAND = r"(?:\x1b\[|\x{9b})[0-9;:?]*[ -/]*[@-~]|\x1b."


class _ProposedRule(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    pattern: str = Field(max_length=300)
    evidence: str = Field(max_length=1000)


class _Answer(BaseModel):
    """The quotes come first: a model that has to point at lines before it names a class does better."""

    model_config = ConfigDict(extra="forbid", strict=True)

    quotes: list[str] = Field(min_length=1, max_length=5)
    failure_class: str = Field(alias="class", json_schema_extra={"enum": list(MEANINGS)})
    category: Category
    at_fault: Literal["user", "infrastructure", "unknown"]
    mitigation: str = Field(max_length=600)
    rule: _ProposedRule | None


class _RejectedError(Exception):
    """The answer cannot be used; the message says why."""


def is_unsure(verdict: Verdict) -> bool:
    """Whether rules and retrieval leave the failure open."""
    return verdict.failure_class == "Unknown" or verdict.confidence < UNSURE_BELOW


@dataclass(frozen=True)
class OpenFailure:
    """A failure that rules and past cases leave open."""

    verdict: Verdict
    """The rules'."""
    lines: Sequence[LogLine]
    """Of the compressed log."""
    neighbours: Sequence[Neighbour] = ()


def ask_about_failure(
    model: Model,
    failure: OpenFailure,
    *,
    book: RuleBook | None = None,
    max_prompt_chars: int = 12_000,
) -> Verdict:
    """The model's verdict on a failure, or the rules' with the reason. Never raises.

    `book`: where a rule that it proposes may join.
    """
    try:
        return _ask(model, failure, Excerpt(failure.lines, max_prompt_chars), book)
    except (LanguageModelError, _RejectedError) as error:
        return _unchanged(failure.verdict, str(error))
    except Exception as error:  # a diagnosis must not fail over its last resort
        return _unchanged(failure.verdict, f"{type(error).__name__} while it was asked: {error}")


def answer_schema() -> dict[str, Any]:
    """The answer's JSON schema."""
    return _Answer.model_json_schema(by_alias=True)


def _ask(model: Model, failure: OpenFailure, excerpt: Excerpt, book: RuleBook | None) -> Verdict:
    if not excerpt.lines:
        raise _RejectedError("there is no line to ask about")
    verdict = failure.verdict
    found = model.complete(failure_messages(excerpt, failure.neighbours), schema=answer_schema())
    answer = _checked(found)
    quoted = _ground(answer, excerpt)
    if answer.failure_class == "Unknown":
        return _unchanged(verdict, "the model does not know either")
    same_class = [n for n in failure.neighbours if n.case.failure_class == answer.failure_class]
    supported = any(n.similarity >= ALIKE for n in same_class)
    evidence: list[str | LogLine] = [
        *quoted[1:3],
        f"by the language model {model.name}, asked because the rules say {verdict.failure_class} "
        f"({verdict.confidence:.2f})",
    ]
    if book is not None and answer.rule is not None:
        line = excerpt.find(answer.rule.evidence)
        evidence.append(_learn(answer, line, failure.lines, book, by=model.name))
    if excerpt.withheld:
        evidence.append(
            f"{len(excerpt.withheld)} lines that address a reader were withheld from it"
        )
    evidence += [n.quote for n in same_class if n.similarity >= WORTH_SHOWING]
    return make_verdict(
        answer.failure_class,
        method=METHOD,
        confidence=_SUPPORTED_CONFIDENCE if supported else _ALONE_CONFIDENCE,
        root=quoted[0],
        rank=verdict.faulty_rank,
        node=verdict.faulty_node,
        action=_action(answer, verdict, supported=supported),
        evidence=evidence,
        mitigation=_advice(answer),
    )


def _checked(found: dict[str, Any]) -> _Answer:
    try:
        answer = _Answer.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _RejectedError(
            f"the answer does not fit the schema: {where}: {first['msg']}"
        ) from error
    if answer.failure_class not in MEANINGS:
        raise _RejectedError(f"{answer.failure_class[:40]!r} is no class of the list")
    category = CLASSES[answer.failure_class].category
    if answer.category != category:
        raise _RejectedError(
            f"the answer contradicts itself: {answer.failure_class} is {category}, not {answer.category}"
        )
    return answer


def _ground(answer: _Answer, excerpt: Excerpt) -> list[LogLine]:
    """The lines that were quoted; an invented one spoils the whole answer."""
    lines = []
    for quote in answer.quotes:
        line = excerpt.find(quote)
        if line is None:
            raise _RejectedError(f"a quoted line does not stand in the log: {redact(quote)[:80]!r}")
        lines.append(line)
    return lines


def _action(answer: _Answer, verdict: Verdict, *, supported: bool) -> ActionKind:
    """The class's action. On a model's word alone no node is excluded and nothing rolled back."""
    action = CLASSES[answer.failure_class].action
    if answer.at_fault == "user" and action in RESTARTS:
        return "fix_by_user"
    if not supported and action not in CAREFUL_ACTIONS:
        return verdict.action
    return action


def _advice(answer: _Answer) -> str | None:
    """The model's advice in one line; None (the class's own) when it could do harm."""
    text = compile_pattern(_TERMINAL_COMMAND).sub(" ", answer.mitigation)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    named = (name.lower() for name in compile_pattern(_DOTTED).findall(text))
    unsafe = compile_pattern(_UNSAFE_ADVICE).search(text) is not None
    unsafe = unsafe or any(not name.endswith(_FILE_SUFFIXES) for name in named)
    return None if unsafe or not text else f"{text} (A language model's advice: check it.)"


def _learn(
    answer: _Answer, line: LogLine | None, lines: Sequence[LogLine], book: RuleBook, *, by: str
) -> str:
    """Try to add the proposed rule, whose evidence is `line` of the log; what came of it, as evidence."""
    if line is None or answer.rule is None:
        return "its rule was not taken: the rule's evidence does not stand in the log"
    try:
        rule = new_rule(
            failure_class=answer.failure_class,
            pattern=answer.rule.pattern,
            evidence=redact(line.body),
            model=by,
            log=line.file,
            known=[known.id for known in book.rules()],
        )
        problems = _problems_in_log(checked_pattern(rule.pattern), line, lines) or book.add(rule)
    except (ConfigError, OSError) as error:
        problems = [str(error)]
    return f"its rule was not taken: {problems[0]}" if problems else f"learned rule {rule.id}"


def _problems_in_log(pattern: Pattern, quoted: LogLine, lines: Sequence[LogLine]) -> list[str]:
    """What the log itself says against the pattern."""
    if pattern.search(quoted.body) is None:
        return ["the pattern does not match the quoted line"]
    if is_routine(quoted.body):
        return ["the quoted line is routine: nothing in it speaks of a failure"]
    routine = matched_in_passing(pattern, lines)
    return (
        [] if routine is None else [f"the pattern matches line {routine.number}, which is routine"]
    )


def _unchanged(verdict: Verdict, reason: str) -> Verdict:
    note = (
        f"language model: {' '.join(redact(reason).split())[:300]}; the verdict stands without it"
    )
    evidence = [*verdict.evidence[: MAX_EVIDENCE - 1], note]
    return verdict.model_copy(update={"evidence": evidence})
