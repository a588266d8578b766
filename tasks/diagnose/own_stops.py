"""What a site's own service, controller or launcher says as it stops a run: no error, and no class has it.

What ranks print afterwards (a peer is gone, a communicator was aborted) only comes of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.findings import COMMUNICATION, Finding
from tasks.diagnose.handled import says_passing
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.progress import Progress

_WORDS = ("stop", "halt", "suspend", "fence", "withdr", "revok", "denied", "froze", "not ", "expired", "refus", "reject", "declin", "lost", "clos")  # fmt: skip
"""In lower case: a line with none of them is none."""
_GRANTED = (
    r"(?:lease|licen[cs]e|permit|permission|reservation|envelope|grant|ticket|token|budget|credits?|window|session|slot|allocation|"
    r"run|job|training|learner|tenant|account|cell|accelerators?|pool|rule|policy|gate|approval|interlock)"
)
_TAKEN = (
    r"(?:stopped|halted|suspended|fenced|withdrawn|revoked|denied|frozen|expired|refused|rejected|declined|lost|closed|"
    r"not (?:granted|released|signed|approved|satisfied|renewed|met|valid|open))"
)
_STOPS = compile_pattern(
    rf"(?i)\b{_GRANTED}\b.{{0,80}}\b{_TAKEN}\b|\b{_TAKEN} (?:by|for|of|until) .{{0,40}}\b{_GRANTED}\b|"
    r"\b(?:emergency|protective|safety|policy|interlock) (?:stop|halt)\b|\bstop (?:code|order)\b|"
    r"\b(?:run|job|training|trainer|learner) (?:must|has to|is to|was told to) (?:stop|halt|leave|end)\b"
)
_AUTHORITY = compile_pattern(
    r"(?i)\b(?:polic(?:y|ies)|rule|directive|interlock|safety|emergency|facility|budget|curfew|approv\w*|sign(?:ed|atures?|-off)|ticket|"
    r"maintenance|compliance|governance|licen[cs]e|lease|reservation|envelope|permit|power)\b"
)
_FAULTS = compile_pattern(
    r"(?i)\b(?:exit(?:ed)?|exception|traceback|error|signal|rank \d+|worker \d+|nccl|heartbeats?|peer|connection|node|socket|timed? ?out)\b"
)
"""Of a launcher that stops what is left of a job that has failed."""
_SOMEBODY_DECIDES = compile_pattern(
    r"(?i)\b(?:polic(?:y|ies)|not (?:signed|approved)|unsigned|sign-?off|approval|compliance|budget)\b"
)
_LINES_OF_AN_END = 100


@dataclass
class OwnStops:
    """Feed it lines; it holds the first such line of each file since its last step."""

    first: dict[str, tuple[LogLine, int]] = field(default_factory=dict)

    def feed(self, line: LogLine, steps: int) -> None:
        """Take note of one line; `steps`: that its file has reported before it."""
        said, told_at = self.first.get(line.file, (None, -1))
        past = said is None or told_at != steps or line.number - said.number > _LINES_OF_AN_END
        if past and says_that_it_stops(line.body):
            self.first[line.file] = (line, steps)

    def merge(self, other: OwnStops) -> None:
        """Add what other files tell."""
        self.first.update(other.first)

    def at_the_end(self, progress: Progress) -> LogLine | None:
        """The first such line near the end of a file that reports no step after it."""
        for line, steps in self.first.values():
            tail = progress.tails.get(line.file)
            near = tail is not None and tail[-1].number - line.number <= _LINES_OF_AN_END
            if near and progress.steps_in[line.file] == steps:
                return line
        return None

    def before(self, effects: list[Finding], progress: Progress) -> LogLine | None:
        """The same, in the words of an authority, where all that went wrong afterwards is that ranks lost each other."""
        stop = self.at_the_end(progress)
        if stop is None or _AUTHORITY.search(stop.body) is None or _FAULTS.search(stop.body):
            return None
        come_of_it = all(
            f.failure_class in COMMUNICATION
            and f.line.file == stop.file
            and f.line.number > stop.number
            for f in effects
        )
        return stop if effects and come_of_it else None


def says_that_it_stops(body: str) -> bool:
    """Whether the line says that a run is stopped, or that what it may use is taken from it."""
    lower = body.lower()
    if not any(word in lower for word in _WORDS):
        return False
    return _STOPS.search(body) is not None and not says_passing(body)


def needs_a_person(stop: LogLine) -> bool:
    """Whether somebody has to decide before the run may go on."""
    return _SOMEBODY_DECIDES.search(stop.body) is not None
