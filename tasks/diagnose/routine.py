"""Lines that jobs print in the course of things: no sign of a failure, whoever says so."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files

import yaml

from tasks.diagnose.cause_words import cause_words
from tasks.diagnose.filter_rules import shipped_rules
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import Pattern
from tasks.diagnose.reports import is_step

_LINES_NAME = "routine_lines.yaml"


@lru_cache(maxsize=1)
def routine_lines() -> tuple[str, ...]:
    """Examples: of jobs that did not fail, and what the filter rules were written for."""
    text = files("tasks.diagnose").joinpath(_LINES_NAME).read_text(encoding="utf-8")
    dropped = (line for rule in shipped_rules().rules for line in rule.matches)
    return tuple(dict.fromkeys((*yaml.safe_load(text), *dropped)))


def routine_match(pattern: Pattern) -> str | None:
    """A routine line that the pattern matches; None when it matches none."""
    return next((line for line in routine_lines() if pattern.search(line) is not None), None)


def is_routine(body: str) -> bool:
    """Whether a line reports a step, is one that filter rules drop, or has no word of a failure."""
    return is_step(body) or shipped_rules().match(body) is not None or not cause_words(body)


def matched_in_passing(pattern: Pattern, lines: Iterable[LogLine]) -> LogLine | None:
    """The first routine line of a log that the pattern matches."""
    return next((x for x in lines if pattern.search(x.body) and is_routine(x.body)), None)
