"""Filter rules: which lines are routine and can be dropped. Rules are data (filter_rules.yaml).

Rules that were learnt from jobs lie in a folder, one file for each kind of job, in the same format;
a job takes those of the kinds it is similar to.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from configs.errors import ConfigError
from configs.files import file_lock, write_text
from tasks.diagnose.cause_words import cause_words
from tasks.diagnose.patterns import PatternSet, compile_pattern

_LOGGER = logging.getLogger(__name__)
_SHIPPED_NAME = "filter_rules.yaml"
_REPEAT_COUNT = re.compile(r"\{\d+(?:,\d*)?\}")
_CHARACTER_CLASS = re.compile(r"\[(?:\\.|[^\]\\])+\]")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")

RuleKind = Literal[
    "banner",
    "config",
    "metrics",
    "progress",
    "nccl",
    "debug",
    "checkpoint",
    "data",
    "scheduler",
    "warning",
]


class FilterRule(BaseModel):
    """Lines that one program prints in the course of things."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    kind: RuleKind
    program: str
    """Who prints the line, and which versions were looked at."""
    pattern: str
    """RE2, searched in the line without its launcher's prefix. Digits stand for any digits: lines
    that differ in digits alone are not told apart, so a pattern writes `\\d`."""
    drops: tuple[str, ...] = ()
    """Cause words that its lines hold and that are harmless in them; with any other a line stays."""
    matches: tuple[str, ...] = Field(min_length=1)
    """Lines that it drops."""
    never: tuple[str, ...] = Field(min_length=1)
    """Lines that look alike and that it must not drop."""
    learnt: str | None = None
    """Where a rule that came from a job was learnt: job, date, model."""

    @field_validator("pattern")
    @classmethod
    def _compiles_and_tells_no_digits_apart(cls, pattern: str) -> str:
        compile_pattern(pattern)
        rest = _CHARACTER_CLASS.sub("", _REPEAT_COUNT.sub("", pattern))
        if re.search(r"\d", rest):
            raise ValueError(
                f"{pattern!r} names a digit: rules do not tell digits apart, write \\d"
            )
        return pattern

    @model_validator(mode="after")
    def _keeps_to_its_examples(self) -> Self:
        for line in self.matches:
            if not self.drops_line(line):
                words = ", ".join(sorted(cause_words(line) - set(self.drops)))
                why = f" (cause words: {words})" if words else ""
                raise ValueError(f"rule {self.id} does not drop its own example {line!r}{why}")
        for line in self.never:
            if self.drops_line(line):
                raise ValueError(f"rule {self.id} drops what it must not: {line!r}")
        return self

    def drops_line(self, body: str) -> bool:
        """Whether this rule alone drops the line."""
        found = compile_pattern(self.pattern).search(body) is not None
        return found and cause_words(body) <= set(self.drops)


class JobKind(BaseModel):
    """What makes jobs print alike."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    framework: str
    """megatron-core, deepspeed, nemo, transformers, torchtitan, lightning, ..."""
    name: str = Field("", validation_alias=AliasChoices("name", "model"))
    """Of the run: runs of one model mostly share it. (`model`: as older files have it.)"""
    launcher: str = ""

    def is_similar(self, other: JobKind) -> bool:
        """Whether one's rules serve the other: the same framework, and its name or its launcher."""
        if _slug(self.framework) != _slug(other.framework):
            return False
        pairs = ((self.name, other.name), (self.launcher, other.launcher))
        known = [(_slug(a), _slug(b)) for a, b in pairs if a and b]
        return not known or any(a == b for a, b in known)

    @property
    def file_name(self) -> str:
        """Of the file with this kind's rules."""
        parts = (self.framework, self.name or "any", self.launcher or "any")
        return "--".join(_slug(part) for part in parts) + ".yaml"


class RuleFile(BaseModel):
    """One file of rules."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    """Of the format."""
    revision: str
    """Of the rules: the date of their last change."""
    job: JobKind | None = None
    """Whose rules these are; none for those of all jobs."""
    rules: tuple[FilterRule, ...]


class FilterRules:
    """Rules, ready to match."""

    def __init__(self, rules: Sequence[FilterRule]) -> None:
        self.rules = tuple(rules)
        self._set = PatternSet([compile_pattern(rule.pattern) for rule in rules])

    def match(self, body: str) -> FilterRule | None:
        """The first rule that drops the line; None when it stays."""
        if not self.rules:
            return None
        hits = self._set.all(body)
        if not hits:
            return None
        words = cause_words(body)
        return next((r for r in map(self.rules.__getitem__, hits) if words <= set(r.drops)), None)

    def with_rules(self, more: Iterable[FilterRule]) -> FilterRules:
        """These and more; one with a known id takes the known one's place."""
        merged = {rule.id: rule for rule in self.rules}
        merged.update({rule.id: rule for rule in more})
        return FilterRules(list(merged.values()))


def parse_rule_file(text: str, source: str) -> RuleFile:
    """Read a file's text; ConfigError names `source` and what is wrong."""
    try:
        parsed = RuleFile.model_validate(yaml.safe_load(text))
    except (yaml.YAMLError, ValidationError, ConfigError) as error:
        raise ConfigError(f"The filter rules in {source} are malformed: {error}") from error
    ids = [rule.id for rule in parsed.rules]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ConfigError(f"The filter rules in {source} use an id twice: {', '.join(twice)}")
    return parsed


@lru_cache(maxsize=1)
def shipped_rules() -> FilterRules:
    """The rules that come with Overland."""
    text = files("tasks.diagnose").joinpath(_SHIPPED_NAME).read_text(encoding="utf-8")
    return FilterRules(parse_rule_file(text, _SHIPPED_NAME).rules)


def rules_for(job: JobKind | None, folder: Path | None) -> FilterRules:
    """The shipped rules, and those learnt from similar jobs; the job's own come last and win."""
    rules = shipped_rules()
    if job is None or folder is None or not folder.is_dir():
        return rules
    learnt = [file for path in folder.glob("*.yaml") if (file := _learnt_in(path)) is not None]
    similar = [file for file in learnt if file.job is not None and job.is_similar(file.job)]
    for file in sorted(similar, key=lambda file: (file.job == job, file.revision)):
        rules = rules.with_rules(file.rules)
    return rules


def save_learnt_rules(folder: Path, job: JobKind, rules: Sequence[FilterRule]) -> Path:
    """Add rules to those of the job's kind, durably; the file's path."""
    path = folder / job.file_name
    with file_lock(path.with_suffix(".lock")):
        known: tuple[FilterRule, ...] = ()
        if path.exists():
            known = parse_rule_file(path.read_text(encoding="utf-8"), str(path)).rules
        merged = FilterRules(known).with_rules(rules).rules
        revision = f"{datetime.now().astimezone():%Y-%m-%d}"
        file = RuleFile(revision=revision, job=job, rules=merged)
        content = {"version": file.version, **file.model_dump(mode="json", exclude_defaults=True)}
        write_text(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return path


def _learnt_in(path: Path) -> RuleFile | None:
    """The rules of a file; None, and a warning, where somebody has spoilt it: they only make logs shorter."""
    try:
        return parse_rule_file(path.read_text(encoding="utf-8"), str(path))
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        _LOGGER.warning("filter rules are left out: %s: %s", path, error)
        return None


def _slug(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-")
