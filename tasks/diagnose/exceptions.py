"""Python exceptions in logs: follows chained tracebacks and gives an exception's type its class.

`TracebackReader` is fed the lines of one stream (one rank of one file) in order. It returns a
`Raised` for each exception line, and knows which of a chain's exceptions came first: what follows
"The above exception was the direct cause of" or "During handling of the above exception" is a
consequence of what stands above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tasks.diagnose.exception_types import WRAPPERS
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import Match, Pattern, compile_pattern

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
_LEADS = compile_pattern(r"[\W\d_TZ]*$")
_ERROR_LEVEL = compile_pattern(
    r"(?i)\b(?:error|fatal|critical|severe|uncaught|unhandled)\b|\bE\d{4}\b"
)
_DIRECT_CAUSE = "The above exception was the direct cause of"
_DURING_HANDLING = "During handling of the above exception"
CHAIN_JOINTS = (_DIRECT_CAUSE, _DURING_HANDLING)
"""How the line between two exceptions of a chain begins."""

_OF_COMPILERS = ("InductorError", "LoweringException", "BackendCompilerFailed", "TorchRuntimeError")
"""They say first what another exception was: InductorError: PermissionError: ..."""
_INNER = compile_pattern(rf"^({_TYPE_NAME}(?:Error|Exception)): (.*)$")
_WRAPPING_MESSAGE = compile_pattern(r"Caught \w+ in ")
# Raised and caught in everyday code: not the reason for what is raised while handling them.
_BENIGN_CONTEXT = (
    "KeyError",
    "AttributeError",
    "IndexError",
    "ImportError",
    "ModuleNotFoundError",
    "StopIteration",
    "Empty",
    "Full",
)
_TEARDOWN = compile_pattern(
    r" (?:_?tear_?down|__exit__|__del__|close|finali[sz]e|shutdown|clean_?up|destroy\w*)$"
)
_VAGUE = ("RuntimeError", "Exception")
_SAYS_NOTHING = compile_pattern(r"(?i)^(?:[a-z_]+ ){0,6}(?:failed|error)\W*$")
_FALLBACKS = compile_pattern(r"packaged_modules/json/json\.py")
"""Readers that try another way when the first fails, and then raise what the first said."""
_LAUNCHERS = compile_pattern(
    r"accelerate/commands/|deepspeed/launcher/|torch/distributed/(?:launch|run)\.py|torchx/|runpy\.py run_path"
)
"""A helper program's failure that a launcher reports is the job's own."""
_SIDE_THREADS = compile_pattern(
    r"pin_memory\.py|resource_sharer\.py|resource_tracker\.py|multiprocessing/(?:queues|connection|managers|util)\.py|"
    r"wandb/|tensorboard/|telemetry|logging/__init__\.py|atexit"
)
_FROM_WORKER = compile_pattern(r"torch/utils/data/dataloader\.py _(?:try_)?get_data")
_OF_A_DYING_PROCESS = (
    "ConnectionResetError",
    "ConnectionRefusedError",
    "BrokenPipeError",
    "EOFError",
    "Empty",
    "FileNotFoundError",
    "OSError",
)


@dataclass(frozen=True)
class Raised:
    """One exception of a traceback."""

    type_name: str
    message: str
    line: LogLine
    frames: tuple[str, ...] = ()
    """`file function` of its traceback, outermost first."""
    context: Raised | None = None
    """The exception above it in the chain."""
    direct: bool = False
    """`context` is its direct cause, by `raise ... from`."""
    depth: int = 0
    """Links above it."""
    in_traceback: bool = True
    """A traceback stood above it; otherwise the line merely looks like an exception's."""
    begun_at: int = 0
    """Number of the line that its traceback begins with."""

    @property
    def in_passing(self) -> bool:
        """Whether a line of another kind only mentions it."""
        body = self.line.body
        return not self.in_traceback and (
            _LEADS.match(body[: body.find(self.type_name)]) is None
            and _ERROR_LEVEL.search(body) is None
        )

    @property
    def short_name(self) -> str:
        """Type without its module."""
        return self.type_name.rpartition(".")[2]

    @property
    def wraps_another(self) -> bool:
        """Whether it says that it was caught in a worker: what follows is the original."""
        return _WRAPPING_MESSAGE.match(self.message) is not None

    @property
    def wrapper(self) -> bool:
        """Whether it only reports another failure."""
        by_launcher = self.short_name == "CalledProcessError" and self._in(_LAUNCHERS)
        return self.wraps_another or by_launcher or self.short_name.startswith(WRAPPERS)

    @property
    def says_nothing(self) -> bool:
        """Whether it tells no more than that something failed, or comes of cleaning up after a failure."""
        vague = self.short_name in _VAGUE and _SAYS_NOTHING.search(self.message) is not None
        return vague or self._in(_TEARDOWN)

    @property
    def beside_the_point(self) -> bool:
        """Whether it is only what a helper thread or the interpreter's end makes of a dying process."""
        return self.of_a_dying_process and self._in(_SIDE_THREADS)

    @property
    def of_a_dying_process(self) -> bool:
        """Whether a helper thread may end so when its process, or another that feeds it, does."""
        return self.short_name in _OF_A_DYING_PROCESS and not lost_worker(self)

    def _in(self, frames: Pattern) -> bool:
        """Whether its innermost frames are such."""
        return any(frames.search(frame) for frame in self.frames[-3:])

    def above(self) -> Iterator[Raised]:
        """The exceptions above it in the chain, the nearest first."""
        link = self.context
        while link is not None:
            yield link
            link = link.context

    def links(self) -> list[Raised]:
        """The chain from its root to this exception."""
        links = [self, *self.above()]
        return links[links.index(self.root()) :: -1]

    def root(self) -> Raised:
        """The first link of the chain that explains the rest."""
        link = self
        while link.context is not None:
            tried = link.context.short_name in _BENIGN_CONTEXT or link.context._in(_FALLBACKS)
            if not link.direct and tried and not link.wrapper and not link.says_nothing:
                break
            link = link.context
        return link


class TracebackReader:
    """Follows the tracebacks of one stream."""

    def __init__(self) -> None:
        self._frames: list[str] | None = None
        self._begun_at = 0
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
        self._frames = []

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


def lost_worker(raised: Raised) -> bool:
    """Whether the main process was reading from a data worker that is gone."""
    reading = any(_FROM_WORKER.search(frame) for frame in raised.frames)
    return raised.short_name in _OF_A_DYING_PROCESS and reading
