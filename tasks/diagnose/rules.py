"""Loads rules.yaml and matches log lines against it.

All patterns of all rules are tried in one pass over a line; most lines match none.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from configs.errors import ConfigError
from configs.records import ActionKind
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.findings import Finding, Role
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import PatternSet, compile_pattern

_RULES_NAME = "rules.yaml"


class Rule(BaseModel):
    """One entry of rules.yaml; its fields are explained there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    failure_class: str = Field(alias="class")
    role: Role
    patterns: tuple[str, ...] = Field(min_length=1)
    action: ActionKind | None = None
    mitigation: str | None = None
    note: str = ""

    @field_validator("failure_class")
    @classmethod
    def _class_is_known(cls, name: str) -> str:
        if name not in CLASSES:
            raise ValueError(f"{name!r} is no failure class")
        return name


class RuleSet:
    """Rules in order, ready to match."""

    def __init__(self, rules: list[Rule]) -> None:
        self.rules = tuple(rules)
        self._patterns = [(rule, compile_pattern(p)) for rule in rules for p in rule.patterns]
        self._set = PatternSet([pattern for _, pattern in self._patterns])

    def match(self, line: LogLine, order: int) -> Finding | None:
        """What the first rule that matches says about the line; None when none does."""
        index = self._set.first(line.body)
        if index is None:
            return None
        rule, pattern = self._patterns[index]
        found = pattern.search(line.body)
        groups = found.groupdict() if found else {}
        rank = groups.get("rank")
        return Finding(
            failure_class=rule.failure_class,
            role=rule.role,
            method=rule.id,
            line=line,
            order=order,
            action=rule.action,
            mitigation=rule.mitigation,
            node=groups.get("node"),
            rank=int(rank) if rank and rank.isdecimal() else line.rank,
        )


def parse_rules(text: str, source: str) -> RuleSet:
    """Read rules from YAML text; ConfigError names `source` and what is wrong."""
    try:
        rules = TypeAdapter(list[Rule]).validate_python(yaml.safe_load(text))
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"The diagnosis rules in {source} are malformed: {error}") from error
    ids = [rule.id for rule in rules]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise ConfigError(f"The diagnosis rules in {source} use an id twice: {', '.join(twice)}")
    return RuleSet(rules)


@lru_cache(maxsize=1)
def default_rules() -> RuleSet:
    """The rules that come with Overland."""
    resource = files("tasks.diagnose").joinpath(_RULES_NAME)
    return parse_rules(resource.read_text(encoding="utf-8"), _RULES_NAME)


def default_rules_and(learned: list[Rule]) -> RuleSet:
    """The rules that come with Overland, and behind them those learned from failures."""
    return RuleSet([*default_rules().rules, *learned]) if learned else default_rules()
