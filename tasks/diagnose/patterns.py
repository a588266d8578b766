"""Regular expressions for text that is not trusted: RE2, linear in the text whatever the pattern.

The one place that imports re2. Where an expression holds for every line of every log, RE2 is also
the faster engine here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import re2  # type: ignore[import-untyped]

from configs.errors import ConfigError

_MAX_MEMORY_BYTES = 64 << 20


class Match(Protocol):
    """A match, as RE2's Python module gives it."""

    def __getitem__(self, group: int | str) -> Any:
        """Text of a group (str); None when it took no part."""

    def end(self) -> int:
        """Offset after the match."""

    def groups(self) -> tuple[Any, ...]:
        """Text of every group, as of [1] and so on: quicker than by names, for lines of every log."""

    def groupdict(self) -> dict[str, str | None]:
        """Named groups."""


class Pattern(Protocol):
    """A compiled expression."""

    pattern: str
    groupindex: Mapping[str, int]
    """Numbers of the groups that have names."""

    def search(self, text: str) -> Match | None:
        """First match anywhere."""

    def match(self, text: str) -> Match | None:
        """Match at the start."""

    def sub(self, replacement: str | Callable[[Match], str], text: str) -> str:
        """Replace every match."""

    def findall(self, text: str) -> list[str]:
        """Text of every match, or of its only group; of an expression with one group at most."""


def compile_pattern(pattern: str) -> Pattern:
    """Compile an expression; ConfigError when it is not in RE2's syntax."""
    try:
        return cast(Pattern, re2.compile(pattern, _options()))
    except re2.error as error:
        raise ConfigError(f"Pattern {pattern!r} is not an RE2 expression: {error}") from error


class PatternSet:
    """Many expressions, tried on a text in one pass."""

    def __init__(self, patterns: list[Pattern]) -> None:
        self._set = re2.Set.SearchSet(_options())
        for pattern in patterns:
            self._set.Add(pattern.pattern)
        self._set.Compile()

    def first(self, text: str) -> int | None:
        """Lowest index of an expression that is found in the text."""
        hits: list[int] = self._set.Match(text)
        return min(hits) if hits else None

    def all(self, text: str) -> list[int]:
        """Indexes of the expressions that are found in the text, lowest first."""
        return sorted(self._set.Match(text) or ())


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    return options
