"""Whose kernel log follows: headings that a collector puts above each host's part."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.diagnose.host_names import only_host_in
from tasks.diagnose.patterns import compile_pattern

_HEADING = compile_pattern(
    r"(?i)^[-=#*>+]{2,}.{0,80}\b(?:dmesg|journal(?:ctl)?|kernel|klog|kern\.log|syslog)\b"
)
_OF_THE_PART = compile_pattern(r"^(?:\[|\d{4}-\d\d-\d\d|[A-Z][a-z]{2} [ \d]\d |<\d|kern\w* *:)")
"""Lines of a kernel's log begin with a time."""
_RULES = frozenset(sign * 2 for sign in "-=#*>+")
_MIN_DASHES = 5


@dataclass
class Headings:
    """Feed it lines; it knows the host whose kernel's log is being read."""

    host: str | None = None
    _below_dashes: bool = False
    """As clush and dshbak do it: a name between two lines of dashes."""

    def feed(self, text: str) -> None:
        """Take note of one line, without a launcher's label."""
        if _is_dashes(text):
            self._below_dashes = True
            return
        named = self._below_dashes and " " not in text.strip()
        self._below_dashes = False
        if named or is_heading(text):
            self.host = only_host_in(text)
        elif self.host is not None and _OF_THE_PART.match(text) is None:
            self.host = None


def is_heading(text: str) -> bool:
    """Whether a part of a kernel's log begins below the line."""
    return text[:2] in _RULES and (_is_dashes(text) or _HEADING.match(text) is not None)


def _is_dashes(text: str) -> bool:
    return text.startswith("--") and len(text) >= _MIN_DASHES and not text.rstrip().strip("-")
