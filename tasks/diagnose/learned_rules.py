"""Rules that a language model has proposed, each checked before it counts and again when it is loaded.

A pattern joins when RE2 compiles it, it says enough, matches the line that it was proposed for, and
matches no line of a past failure of another class, none of the regression logs' of another class
(regression_lines.py), nor a routine one (routine.py). Learned rules have
the role `learned`: learned_verdict.py holds what they may say. One that a person's confirmation
contradicts later is not loaded any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from configs.errors import ConfigError
from configs.files import file_lock, write_text
from tasks.diagnose.cases import CONFIRMED_NAME, Case, confirmed_cases, packaged_cases
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.patterns import Pattern, compile_pattern
from tasks.diagnose.regression_lines import line_of_another_class
from tasks.diagnose.routine import routine_match
from tasks.diagnose.rules import Rule

FILE_NAME = "learned_rules.yaml"
_MAX_PATTERN_CHARS = 300
_LEAST_LITERAL_CHARS = 10
_MAX_RULES = 500
_NO_LITERALS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{[\d,]+\}|\(\?[\w<>:=!-]*")
_HARMLESS = (
    "",
    " ",
    "step 100 loss 2.31 grad_norm 0.41 tokens/s 118034",
    "Traceback (most recent call last):",
    "RuntimeError: ",
    "Error: ",
    "    return self._call_impl(*args, **kwargs)",
    '  File "/opt/app/train.py", line 12, in <module>',
    "[2025-01-01 10:00:00,000] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1)",
)


class LearnedRule(BaseModel):
    """One rule with where it came from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    failure_class: str = Field(alias="class")
    pattern: str
    evidence: str
    """The (redacted) line that it was proposed for."""
    model: str
    """Who proposed it."""
    learned_at: str
    log: str
    """The file that the evidence stands in."""

    def as_rule(self) -> Rule:
        """The rule in the form of rules.yaml."""
        return Rule.model_validate(
            {
                "id": self.id,
                "class": self.failure_class,
                "role": "learned",
                "patterns": [self.pattern],
                "note": f"proposed by {self.model} on {self.learned_at}",
            }
        )


class _RuleFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    rules: tuple[LearnedRule, ...] = ()


class RuleBook:
    """The learned rules in a folder, and the cases that they must agree with."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._cases = [*packaged_cases(), *confirmed_cases(folder / CONFIRMED_NAME)]

    def rules(self) -> list[LearnedRule]:
        """Those that still agree with every case. A missing file holds none."""
        return [rule for rule in self._read() if not self.problems(rule)]

    def problems(self, rule: LearnedRule) -> list[str]:
        """Why the rule cannot join; empty when it can."""
        if rule.failure_class not in CLASSES or rule.failure_class in ("NoFailure", "Unknown"):
            return [f"{rule.failure_class} is no class that a rule can give"]
        try:
            pattern = checked_pattern(rule.pattern)
        except ConfigError as error:
            return [str(error)]
        problems = []
        if pattern.search(rule.evidence) is None:
            problems.append("the pattern does not match its own evidence")
        broken = sorted(c.id for c in self._cases if _contradicts(pattern, rule.failure_class, c))
        if broken:
            problems.append(
                f"the pattern matches lines of {', '.join(broken[:3])}, of another class"
            )
        routine = routine_match(pattern)
        if routine is not None:
            problems.append(f"the pattern matches routine lines, like {routine[:120]!r}")
        other = line_of_another_class(pattern, rule.failure_class)
        if other is not None:
            problems.append(
                f"the pattern matches {other[1][:120]!r} of a log whose class is {other[0]}"
            )
        return problems

    def add(self, rule: LearnedRule) -> list[str]:
        """Add the rule when nothing speaks against it; what does."""
        problems = self.problems(rule)
        if problems:
            return problems
        with file_lock(self.path.with_suffix(".lock")):
            known = self._read()
            if any(r.pattern == rule.pattern for r in known):
                return ["the pattern is known already"]
            if len(known) >= _MAX_RULES:
                return [f"there are {_MAX_RULES} learned rules already: look through {self.path}"]
            _write(self.path, [*known, rule])
        return []

    def _read(self) -> list[LearnedRule]:
        try:
            if not self.path.exists():
                return []
            loaded = yaml.safe_load(self.path.read_text(encoding="utf-8"))
            return list(_RuleFile.model_validate(loaded).rules)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, ValueError) as error:  # no YAML, no text, or not what stands in it
            first = str(error).strip().splitlines()[0]
            raise ConfigError(f"the learned rules in {self.path} are malformed: {first}") from error


def learned_rules(folder: Path) -> list[Rule]:
    """The learned rules of a folder, ready to stand behind the written ones; ConfigError when they cannot be read."""
    files = (folder / FILE_NAME, folder / CONFIRMED_NAME)
    try:
        stamps = tuple((s.st_mtime_ns, s.st_size) for f in files if f.exists() and (s := f.stat()))
        return list(_checked_rules(folder, stamps))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}") from error


@lru_cache(maxsize=4)
def _checked_rules(folder: Path, _stamps: tuple[tuple[int, int], ...]) -> tuple[Rule, ...]:
    """Once for each state of the files: each rule is checked against all cases."""
    return tuple(rule.as_rule() for rule in RuleBook(folder).rules())


def new_rule(
    *, failure_class: str, pattern: str, evidence: str, model: str, log: str, known: Iterable[str]
) -> LearnedRule:
    """A rule with an id of its own."""
    stem, taken = f"learned_{failure_class.lower()}", set(known)
    number = next(n for n in range(1, len(taken) + 2) if f"{stem}_{n}" not in taken)
    return LearnedRule.model_validate(
        {
            "id": f"{stem}_{number}",
            "class": failure_class,
            "pattern": pattern,
            "evidence": evidence,
            "model": model,
            "learned_at": f"{datetime.now(UTC):%Y-%m-%d}",
            "log": log,
        }
    )


def checked_pattern(text: str, *, harmless: bool = True) -> Pattern:
    """The pattern, compiled; ConfigError when it is none, too long, or says too little.

    `harmless`: it must not match what stands in any log, either.
    """
    if len(text) > _MAX_PATTERN_CHARS:
        raise ConfigError(
            f"a pattern of {len(text)} characters is too long: {_MAX_PATTERN_CHARS} at most"
        )
    pattern = compile_pattern(text)
    if pattern.groupindex:
        raise ConfigError(
            f"pattern {text!r} names a group: a learned rule tells a class, no rank or node"
        )
    literal = _NO_LITERALS.sub("", text)
    if sum(character.isalnum() for character in literal) < _LEAST_LITERAL_CHARS:
        raise ConfigError(f"pattern {text!r} says too little: it would match other failures")
    lines = _HARMLESS if harmless else ("", " ")
    matched = next((line for line in lines if pattern.search(line) is not None), None)
    if matched is not None:
        raise ConfigError(f"pattern {text!r} matches what stands in any log, like {matched!r}")
    return pattern


def _contradicts(pattern: Pattern, failure_class: str, case: Case) -> bool:
    if case.failure_class == failure_class:
        return False
    return any(pattern.search(line) is not None for line in case.lines)


def _write(path: Path, rules: Sequence[LearnedRule]) -> None:
    content = _RuleFile(rules=tuple(rules)).model_dump(mode="json", by_alias=True)
    write_text(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000))
