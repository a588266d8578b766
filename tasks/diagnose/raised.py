"""One exception of a traceback: whether it only reports another, and which link of its chain explains the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tasks.diagnose.exception_types import WRAPPERS
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import Pattern, compile_pattern

_LEADS = compile_pattern(r"[\W\d_TZ]*$")
_ERROR_LEVEL = compile_pattern(
    r"(?i)\b(?:error|fatal|critical|severe|uncaught|unhandled)\b|\bE\d{4}\b"
)
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
_THING = r"(?:[\w.'\"`/#:()-]{1,60} ?)"
_WHEN = r"(?: (?:at|in|on|for|during|after|with) (?:an? )?(?:epoch|step|iter\w*|batch|rank|stage|phase|worker|device|exit (?:code|status)|code|exception|error)[ #=:]*[\w.-]*)*"
_SAYS_NOTHING = compile_pattern(
    rf"(?i)^(?:{_THING}{{0,6}}\b(?:failed|error|aborted|crashed){_WHEN}(?: due to (?:an|the|a previous) (?:\w+ )?(?:error|exception|failure))?|"
    rf"(?:an? )?(?:\w+ )?(?:error|exception|failure|problem) (?:occurr?ed |happened |raised )?(?:in|during|while|when|at|inside) {_THING}{{1,6}}|"
    rf"failed (?:to (?:run|execute|complete|finish)|in|during|at|while|inside) {_THING}{{1,6}})"
    r"[\s,.;:(-]*(?:(?:please )?(?:see|check|look at|cf\.?)\b.{0,60})?\W*$"
)
_REPEATED_CHARS = 15
_LINES_OF_ANNOUNCEMENT = 2
_WORDS_OF_ITS_OWN_CHARS = 20
_NONE = ("'NoneType' object ", "argument of type 'NoneType'", "cannot unpack non-iterable NoneType")
_ENDS_OF_WAITS = (
    "TimeoutError",
    "CancelledError",
    "Cancelled",
    "Timeout",
    "timeout",
    "TimeoutException",
)
_OF_NOTHING = ("NameError", "UnboundLocalError")
_STANDARD_LIBRARY = ("/python3", "<frozen ")
_PACKAGES = "-packages/"
_OF_THE_MACHINE = compile_pattern(r"\[Errno (?:12|23|24|28|30|5|122)\]")
"""Of the machine or the file system: no dying process gives rise to it."""
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
    follows: int = 0
    """Number of the line that the traceback before it ends with."""
    source: str = ""
    """What its innermost frame was about to do, where that was printed."""

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
        return _SAYS_NOTHING.search(self.message) is not None or self._in(_TEARDOWN)

    @property
    def waited_in_vain(self) -> bool:
        """Whether it is no more than the end of a wait, without a word of what was waited for."""
        return not self.message and self.short_name in _ENDS_OF_WAITS

    @property
    def tells_little(self) -> bool:
        """Whether it tells no more than that something failed, or that a wait ended."""
        return self.wrapper or self.waited_in_vain or self.says_nothing

    @property
    def beside_the_point(self) -> bool:
        """Whether it is only what a helper thread or the interpreter's end makes of a dying process."""
        return self.of_a_dying_process and self._in(_SIDE_THREADS)

    @property
    def of_a_dying_process(self) -> bool:
        """Whether a helper thread may end so when its process, or another that feeds it, does."""
        dying = (
            self.short_name in _OF_A_DYING_PROCESS and _OF_THE_MACHINE.search(self.message) is None
        )
        return dying and not lost_worker(self)

    def _in(self, frames: Pattern) -> bool:
        """Whether its innermost frames are such."""
        return any(frames.search(frame) for frame in self.frames[-3:])

    def above(self) -> Iterator[Raised]:
        """The exceptions above it in the chain, the nearest first."""
        link = self.context
        while link is not None:
            yield link
            link = link.context

    def announced_by(self, line: LogLine) -> bool:
        """Whether a line just before the chain's tracebacks says its words, other than as another traceback's end."""
        links = [self, *self.above()]
        first = links[-1]
        before = max(first.begun_at - _LINES_OF_ANNOUNCEMENT, first.follows + 1)
        if not before <= line.number < first.begun_at or line.body.startswith(self.type_name):
            return False
        words = (link.message for link in links if len(link.message) >= _WORDS_OF_ITS_OWN_CHARS)
        return any(said in line.body for said in words)

    def links(self) -> list[Raised]:
        """The chain from its root to this exception."""
        links = [self, *self.above()]
        return links[links.index(self.root()) :: -1]

    def root(self) -> Raised:
        """The first link of the chain that explains the rest."""
        link = self
        while link.context is not None:
            if link._went_on_from(link.context):
                break
            link = link.context
        return link

    def _went_on_from(self, before: Raised) -> bool:
        """Whether the exception before it was met in the course of things, and this one is a matter of its own."""
        if self.direct or self.wrapper or self.says_nothing:
            return False
        if self._tried_otherwise(before):
            return True
        usual = before.short_name in _BENIGN_CONTEXT or before._in(_FALLBACKS)
        return usual and not self._repeats(before) and not self._misses_what(before)

    def _tried_otherwise(self, before: Raised) -> bool:
        """Whether a function of the standard library met the one before, tried another way, and this came of it."""
        where = before.frames[-1] if before.frames else ""
        library = any(word in where for word in _STANDARD_LIBRARY) and _PACKAGES not in where
        return library and where in self.frames[:-1]

    def _repeats(self, before: Raised) -> bool:
        """Whether it says the words of the one before once more."""
        named = (f"{before.short_name}{mark}{before.message}" for mark in (": ", "("))
        if before.message and any(words in self.message for words in named):
            return True
        own = len(before.message) >= _REPEATED_CHARS and " " in before.message
        return own and before.message in self.message

    def _misses_what(self, before: Raised) -> bool:
        """Whether it only meets that something could not be imported."""
        if before.short_name not in ("ImportError", "ModuleNotFoundError"):
            return False
        return self.short_name in _OF_NOTHING or self.of_none

    @property
    def of_none(self) -> bool:
        """Whether there was nothing where an object was to be."""
        return self.message.startswith(_NONE)


def lost_worker(raised: Raised) -> bool:
    """Whether the main process was reading from a data worker that is gone."""
    reading = any(_FROM_WORKER.search(frame) for frame in raised.frames)
    return raised.short_name in _OF_A_DYING_PROCESS and reading
