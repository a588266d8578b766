"""Whose kernel log follows: headings that a collector puts above each host's part."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.diagnose.host_names import host_tokens
from tasks.diagnose.patterns import compile_pattern

_HEADING = compile_pattern(
    r"(?i)^[-=#*>+]{2,}.{0,80}\b(?:dmesg|journal(?:ctl)?|kernel|klog|kern\.log|syslog)\b"
)
_OF_THE_PART = compile_pattern(r"^(?:\[|\d{4}-\d\d-\d\d|[A-Z][a-z]{2} [ \d]\d |<\d|kern\w* *:)")
"""Lines of a kernel's log begin with a time."""


@dataclass
class Headings:
    """Feed it lines; it knows the host whose kernel's log is being read."""

    host: str | None = None

    def feed(self, text: str) -> None:
        """Take note of one line, without a launcher's label."""
        if is_heading(text):
            hosts = set(host_tokens(text))
            self.host = hosts.pop() if len(hosts) == 1 else None
        elif self.host is not None and _OF_THE_PART.match(text) is None:
            self.host = None


def is_heading(text: str) -> bool:
    """Whether a part of a kernel's log begins below the line."""
    return text[:2] in _RULES and _HEADING.match(text) is not None


_RULES = frozenset(sign * 2 for sign in "-=#*>+")
