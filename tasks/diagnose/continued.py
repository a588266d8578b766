"""What stands on the line after an error that ends in a colon: its details, which a person wants to see."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.logs import LogLine

_WORDS = ("error", "exception", "fail")
_MAX_ERRORS = 1000
_LINES_BETWEEN = 3
"""Of other ranks in the same file, or of a rewritten bar."""


@dataclass
class ContinuedErrors:
    """Feed it lines; it holds the line that follows each of the newest such errors."""

    _next: dict[tuple[str, int], LogLine] = field(default_factory=dict)
    _open: dict[tuple[str, int | None], LogLine] = field(default_factory=dict)
    """By file and rank: the error, while its next line has not come."""

    def feed(self, line: LogLine) -> None:
        """Take note of one line."""
        stream = (line.file, line.rank)
        error = self._open.pop(stream, None) if self._open else None
        if error is not None and line.number - error.number <= _LINES_BETWEEN:
            self._note(error, line)
        tells_more = line.body.endswith(":") and len(self._open) < _MAX_ERRORS
        if tells_more and any(word in line.body.lower() for word in _WORDS):
            self._open[stream] = line

    def _note(self, error: LogLine, details: LogLine) -> None:
        if any(map(str.isalnum, details.body)):
            self._next[error.file, error.number] = details
        if len(self._next) > _MAX_ERRORS:
            del self._next[next(iter(self._next))]

    def merge(self, other: ContinuedErrors) -> None:
        """Add what other files tell."""
        self._next.update(other._next)

    def after(self, error: LogLine) -> LogLine | None:
        """The details of an error, if it has any."""
        return self._next.get((error.file, error.number))
