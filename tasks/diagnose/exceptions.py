"""Python exceptions in logs: follows chained tracebacks and gives an exception's type its class.

`TracebackReader` is fed the lines of one stream (one rank of one file) in order. It returns a
`Raised` for each exception line, and knows which of a chain's exceptions came first: what follows
"The above exception was the direct cause of" or "During handling of the above exception" is a
consequence of what stands above it.
"""

from __future__ import annotations

from dataclasses import replace

from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import Match, compile_pattern
from tasks.diagnose.raised import Raised

_MAX_STRANGERS = 3
_MAX_LINKS = 100
TRACEBACK_HEADER = "Traceback (most recent call last)"
_HEADER_WORDS = compile_pattern(r"(?:Exception Group |Original )$")
_IN_REPORT = compile_pattern(r"^\s*traceback : $")
_REPORT_INDENT = "  "
_MARGIN = compile_pattern(r"[\s|+-]*$")
_DIGITS = compile_pattern(r"\d")
_FRAME = compile_pattern(r'\s+File "([^"]*)", line \d+(?:, in (.*))?')
_GROUP_MARGIN = compile_pattern(r"\s+\| ?")
_TYPE_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_<>]\w*>?)*"
_RAISED = compile_pattern(rf"({_TYPE_NAME})(?:\s*: (.*)|:?\s*)$")
_RAISED_ANYWHERE = compile_pattern(
    rf"(?:^|[\s:|]|error_handler\.py:\d+\]\s+\"message\": \")({_TYPE_NAME}(?:Error|Exception|Interrupt)|^Exception)\s*:(?: (.*)|$)|"
    rf"^\s*({_TYPE_NAME}(?:Error|Exception|Interrupt|ProcessPool))\s*$"
)
_DIRECT_CAUSE = "The above exception was the direct cause of"
_DURING_HANDLING = "During handling of the above exception"
CHAIN_JOINTS = (_DIRECT_CAUSE, _DURING_HANDLING)
"""How the line between two exceptions of a chain begins."""

_OF_COMPILERS = (
    "InductorError",
    "LoweringException",
    "BackendCompilerFailed",
    "TorchRuntimeError",
    "UnfilteredStackTrace",
)
"""They say first what another exception was: InductorError: PermissionError: ..."""
_INNER = compile_pattern(rf"^({_TYPE_NAME}(?:Error|Exception)): (.*)$")


class TracebackReader:
    """Follows the tracebacks of one stream."""

    def __init__(self) -> None:
        self._frames: list[str] | None = None
        self._begun_at = 0
        self._ended_at = 0
        """Number of the last line of the newest traceback."""
        self._follows = 0
        """The same, of the one before."""
        self._source = ""
        self._strangers = 0
        self._stranger = False
        """The last line is no part of the traceback that it stands in."""
        self._prefix = ""
        """What stands before every line of the traceback: a time, a container's name."""
        self._indent = ""
        """The same, of a traceback in torchrun's report."""
        self._above: Raised | None = None
        self._link: tuple[Raised, bool] | None = None

    def feed(self, line: LogLine) -> Raised | None:
        """The exception that this line ends a traceback with, if it does."""
        body, self._stranger = line.body, False
        if TRACEBACK_HEADER in body:
            self._begun_at = line.number
            self._follows = self._ended_at
            self._begin(body)
            return None
        if self._prefix:
            body = self._without_prefix(body)
        body = body.removeprefix(self._indent)
        if self._frames is None and 'File "' in body and _FRAME.match(body):
            self._frames = []
        if self._frames is not None:
            margin = _GROUP_MARGIN.match(body)
            body = body[margin.end() :] if margin else body
            if body[:1].isspace():
                self._note_frame(body)
                return None
        if body.startswith(CHAIN_JOINTS):
            if self._above is not None:
                self._link = (self._above, body.startswith(_DIRECT_CAUSE))
            return None
        return self._end(body, line)

    @property
    def inside(self) -> bool:
        """Whether the last line was a traceback's header, frame or source text."""
        return self._frames is not None and not self._stranger

    def _begin(self, body: str) -> None:
        before = body[: body.index(TRACEBACK_HEADER)]
        if (words := _HEADER_WORDS.search(before)) is not None:
            before = before[: -len(words[0])]
        self._indent = _REPORT_INDENT if _IN_REPORT.match(before) else ""
        self._prefix = "" if self._indent or _MARGIN.match(before) else before
        self._strangers = 0
        self._frames, self._source = [], ""

    def _without_prefix(self, body: str) -> str:
        """The rest of a line that starts like the traceback's first, digits apart."""
        size = len(self._prefix)
        start = body[:size]
        alike = start == self._prefix or (
            len(start) == size and _DIGITS.sub("0", start) == _DIGITS.sub("0", self._prefix)
        )
        return body[size:] if alike else body

    def _note_frame(self, body: str) -> None:
        match = _FRAME.match(body)
        if match and self._frames is not None:
            self._frames = [*self._frames[-60:], f"{match[1]} {match[2] or ''}"]
            self._source = ""
        elif not self._source:
            self._source = body.strip()

    def _end(self, body: str, line: LogLine) -> Raised | None:
        in_traceback = self._frames is not None
        match = _RAISED.match(body) if in_traceback else _raised_anywhere(body)
        if in_traceback and (match is None or not _is_type(match[1])):
            self._strangers += 1
            self._stranger = True
            if self._strangers <= _MAX_STRANGERS:
                return None  # another rank's line, written into the traceback
            match = None
        frames, self._frames = tuple(self._frames or ()), None
        self._indent = ""
        if match is None:
            return None
        name = match[1] or (match[3] if not in_traceback else "")
        name, message = _innermost(name, (match[2] or "").strip())
        raised = Raised(name, message, line, frames)
        begun_at = self._begun_at if in_traceback else line.number
        raised = replace(raised, in_traceback=in_traceback, begun_at=begun_at)
        if in_traceback:
            raised = replace(raised, follows=self._follows, source=self._source)
            self._ended_at = line.number
        if self._link is not None and in_traceback:
            raised = _behind(raised, *self._link)
        elif not in_traceback and self._above is not None and self._above.wrapper:
            raised = replace(raised, frames=self._above.frames)
        self._link = None
        if in_traceback or self._above is None or raised.frames:
            self._above = raised
        return raised


def _behind(raised: Raised, above: Raised, direct: bool) -> Raised:
    """The next link of a chain. Retries in a loop make chains without end: their middle is left out."""
    if above.depth >= _MAX_LINKS and above.context is not None:
        above = replace(above, context=above.context.context, depth=above.depth - 1)
    return replace(raised, context=above, direct=direct, depth=above.depth + 1)


def _innermost(name: str, message: str) -> tuple[str, str]:
    """Type and message of what a compiler's exception repeats, else its own."""
    inner = _INNER.match(message) if name.endswith(_OF_COMPILERS) else None
    return (inner[1], inner[2]) if inner is not None else (name, message)


def _is_type(name: str) -> bool:
    """Whether a name before a colon may be an exception's type: not a program's, nor a level."""
    if "." in name:
        return not name.endswith(".py")
    return any(c.isupper() for c in name) and any(c.islower() for c in name)


def _raised_anywhere(body: str) -> Match | None:
    """An exception's line outside of a traceback."""
    if not any(word in body for word in ("Error", "Exception", "Interrupt", "ProcessPool")):
        return None
    return _RAISED_ANYWHERE.search(body)


def may_be_traceback(body: str) -> bool:
    """Whether the line belongs to a traceback, by itself."""
    return (
        TRACEBACK_HEADER in body
        or body.startswith(CHAIN_JOINTS)
        or _FRAME.match(body) is not None
        or _raised_anywhere(body) is not None
    )
