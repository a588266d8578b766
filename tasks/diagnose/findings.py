"""What the readers of a log agree on: one line that says something about a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from configs.records import ActionKind
from tasks.diagnose.logs import LogLine

LINK = "network_link"
"""The rule for a network card's own words."""
COMMUNICATION = ("NCCLRemoteError", "NCCLTimeoutError", "NetworkError")
"""Classes of what ranks say when they miss each other, whatever is behind it."""
Role = Literal["decisive", "cause", "effect", "learned"]


@dataclass(frozen=True)
class Finding:
    """A line that a rule or an exception's type gives a class to."""

    failure_class: str
    role: Role
    """decisive outranks cause outranks effect; see rules.yaml. learned: see learned_verdict.py."""
    method: str
    """The rule, or `exception`."""
    line: LogLine
    order: int
    """Counts lines over all files in the order they were read."""
    action: ActionKind | None = None
    """In place of the class's own."""
    mitigation: str | None = None
    """Likewise."""
    node: str | None = None
    rank: int | None = None
    in_passing: bool = False
    """A line that only mentions an exception: no traceback above it, no level of an error."""
    steps_before: int = 0
    """Steps that the same stream had reported when the line came."""
    reports_before: int = 0
    """The same for the rank that reports losses."""
    lines_before: int = 0
    """Ordinary lines of the stream before it."""
    time: float | None = None
    """Seconds since the epoch, by the file's own stamps."""
