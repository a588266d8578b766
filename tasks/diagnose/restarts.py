"""Jobs that begin again in the same log: what ended an earlier start is past.

A file may hold several starts of a job, or tell in a line or two how the last one ended. A later start is
believed in when an end stands before it (the scheduler's word, a launcher's report of a failure, a heading that
says that an attempt has ended) and something comes of it: steps, or trouble of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.findings import Finding
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import Match, compile_pattern

_ENDS_A_JOB = (
    "slurm_time_limit",
    "slurm_preempted",
    "slurm_node_fail",
    "job_node_fail",
)
_KILLED = "slurm_oom"
_DAEMON = "slurmstepd"
_BEGINS_AGAIN = compile_pattern(
    r"(?i)\bjob\b.{0,60}\(restart [1-9]\d*\)|\bSLURM_RESTART_COUNT=[1-9]|\brequeued job (?:starts|begins)|"
    r"\b(?:starting|started|begin\w*|launch\w*)\b.{0,80}\b(?:attempt|restart|try|run) ?#?[2-9]\b"
)
_RUN_AGAIN = compile_pattern(
    r"(?i)\b(?:child|process|program|job|training|trainer|main|run|attempt|launcher|script|command)\b.{0,60}"
    r"\b(?:exited|failed|died|crashed|killed|terminated|ended)\b.{0,60}\b(?:re-?start|relaunch|re-?submitt|respawn)(?:ing|ed)\b"
)
"""Of who looks after the whole program; workers of any kind may come and go."""
_AGAIN_WORDS = ("estart", "aunch", "spawn", "ubmitt")
_REQUEUED = compile_pattern(
    r"(?i)\bjob(?:id)?[ =:]*[\w.]{1,30}:? (?:(?:is|was|has been|being) )?requeued\b"
)
_HEADING = compile_pattern(
    r"^[\W_]*[=#*~>-]{2,}\W*(?i:attempt|restart|relaunch|start|try|run|incarnation|submission)\b"
)
_OF_MANY = compile_pattern(r"\d ?(?:/|of) ?\d")
_SAYS_SO = ("estart", "RESTART", "equeued", "attempt", "tarting", "aunch")
_LABEL_WORDS = (
    "ttempt",
    "TTEMPT",
    "TART",
    "UN ",
    "EQUEUE",
    "AUNCH",
    "ry ",
    "RY ",
    "ubmission",
    "ink ",
    "un ",
    "aunch",
    "tart",
    "equeue",
    "ncarnation",
    "ycle",
    "econd go",
    "hird go",
)
_START = r"(?:start|launch|submission|attempt|try|link|run|incarnation|cycle|go)"
_WORDS = ("first", "second", "third", "fourth")
_AGAIN = r"(?:restart|relaunch|requeue|resubmission)"
_LABEL = compile_pattern(
    r"(?i)^\W*(?:\[[^\]]{0,40}\]\W*){0,2}(?:[\w. -]{1,40}: *)?(?:(?:chain|job|training|now|starting|launching|beginning) )?"
    rf"(?:{_START} ?[#:=]? ?(?P<nth>\d{{1,4}})\b|(?P<th>\d{{1,3}})(?:st|nd|rd|th) {_START}\b|(?P<word>first|second|third|fourth) {_START}\b|"
    rf"{_AGAIN} ?[#:=]? ?(?P<again>\d{{1,4}})\b)"
)
"""A heading that says which start of the job this is: nothing but tags and names stands before it."""
_OF_AN_END = compile_pattern(
    r"(?i)\b(?:ended|fail(?:ed|s|ure)?|exit(?:ed|s)?|finished|died|crashed|stopped|killed|rc ?=|lost|aborted|over|done|ok)\b"
)
_COMMAND = compile_pattern(
    r"^[+$>#]+ (?:(?:exec|time|nohup) )?(?:\w+=\S* )*(?:srun|torchrun|python[\d.]*|accelerate|deepspeed|mpirun|mpiexec)\b"
)
_PREPARES = compile_pattern(
    r"^[A-Za-z][\w.-]{0,60}==\d[\w.+!-]*$|^\s+\w{2,60} \.{5,} \S|NCCL INFO Bootstrap|^(?:\S+ )?NCCL version \d|"
    r"^wandb: (?:Tracking run|Currently logged in)|\bInitializing TorchBackend\b|\bSetting ds_accelerator\b|"
    r"(?i:^[\W\dTZ]*(?:\[[^\]]{0,60}\][\W\dTZ]*)*(?:INFO\W+)?(?:starting|launching|loading|building|importing|initializing|resum(?:ing|ed))\b)|"
    r"(?i:\b(?:picks? up|resum(?:es|ed|ing)|continues) (?:from|at|with) (?:the )?(?:step|iter\w*|checkpoint|/))"
)
"""What programs print as they begin, and not as they end."""

_STARTED_AGAIN = compile_pattern(
    r"(?i)^\W*(?:\[[^\]]{0,40}\]\W*){0,2}(?:[\w. -]{1,40}: *)?(?:re-?start|re-?launch|re-?submitt|starting (?:it )?again)(?:ing|ed)?\b"
)
_QUOTED = compile_pattern(
    r"\b[A-Za-z][\w-]*[^\w\n]+(?:[\w-]+[^\w\n]+)+(?:slurmstepd|srun|scontrol|sacct)\b"
)
"""The scheduler's words in somebody else's sentence; of its own lines, a tag and a name may stand before it."""
_HEAD_LINES = 20


@dataclass
class Starts:
    """What one file has told so far."""

    label: int = 0
    """The highest number of a heading."""
    ended: int = 0
    """Line of the newest end of a start."""
    by_scheduler: bool = False
    """That end is the whole job's, by the scheduler's word: no process of it is left."""
    trouble: int = 0
    """Line of the newest trouble, if no step has been reported since."""
    begins: int = 0
    """Line where another start seems to begin."""
    sure: bool = False
    """By a heading or a command, so that any trouble may come of it; of others, what only a program of its own meets."""
    begun: int = 0
    """The same, when something has come of it."""

    def awaits_another(self) -> bool:
        """Whether a start has ended, and none is known for sure to have begun since."""
        return self.ended > self.begins or (self.ended > 0 and not self.sure)


@dataclass
class Restarts:
    """Where in each file the job's last start begins."""

    files: dict[str, Starts] = field(default_factory=dict)

    def merge(self, other: Restarts) -> None:
        """Add what other files hold."""
        self.files.update(other.files)

    def is_past(self, line: LogLine) -> bool:
        """Whether the line is from before the job's last start."""
        starts = self.files.get(line.file)
        return starts is not None and line.number < starts.begun

    def awaits(self, line: LogLine) -> bool:
        """Whether a start has ended in the line's file, so that another may begin with a step that it resumes from."""
        starts = self.files.get(line.file)
        return starts is not None and starts.ended > starts.begins

    def feed(self, line: LogLine) -> None:
        """Take note of a line that may say that the job begins anew, or that a start has ended."""
        body, starts = line.body, self.files.get(line.file)
        if _says_that_it_begins(body):
            starts = self._of(line)
            starts.begins = starts.begun = line.number
        if _says_that_it_is_requeued(body):
            starts = self._of(line)
            starts.ended, starts.by_scheduler = line.number, True
        elif _says_that_it_runs_again(body):
            starts = self._of(line)
            starts.ended, starts.by_scheduler = line.number, False
            starts.begins, starts.sure = line.number + 1, False
        label = _number_of_start(body)
        if label is not None:
            _note_label(self._of(line), label, line)
        elif starts is not None and starts.awaits_another():
            if _COMMAND.search(body) is not None:
                starts.begins, starts.sure = line.number, True
            elif starts.ended > starts.begins and _seems_to_begin(body, starts):
                starts.begins, starts.sure = line.number, False

    def note_end(self, line: LogLine, finding: Finding | None = None) -> None:
        """A launcher reports a failure, or a finding tells how a start ended."""
        by_scheduler = finding is not None and finding.method in _ENDS_A_JOB
        killed = finding is not None and finding.method == _KILLED
        if finding is None or by_scheduler or killed or _number_of_start(line.body) is not None:
            starts = self._of(line)
            pending = starts.by_scheduler and starts.ended > starts.begins
            starts.by_scheduler = by_scheduler or pending
            starts.ended = line.number
            quoted = by_scheduler or (killed and _DAEMON in line.body)
            if quoted and line.number <= _HEAD_LINES and _QUOTED.search(line.body):
                starts.begins, starts.sure = line.number + 1, False

    def goes_on(self, line: LogLine, finding: Finding | None = None) -> bool:
        """Whether this line, a step or trouble, is the first that comes of a later start."""
        starts = self.files.get(line.file)
        if finding is not None and not finding.in_passing:
            starts = self._of(line)
            starts.trouble = line.number
        elif starts is not None:
            starts.trouble = 0
        if starts is None or not starts.begun < starts.begins <= line.number:
            return False
        if not starts.sure and finding is not None and finding.role == "effect":
            return False
        starts.begun = starts.begins
        return True

    def _of(self, line: LogLine) -> Starts:
        return self.files.setdefault(line.file, Starts())


def _number_of_start(body: str) -> int | None:
    """Which start of the job a heading says that it is about."""
    if not any(word in body for word in _LABEL_WORDS):
        return None
    match = _LABEL.search(body)
    return _number(match) if match is not None else None


def may_begin(body: str) -> bool:
    """Whether a line may begin or end a start, by itself."""
    return (
        _says_that_it_begins(body)
        or _number_of_start(body) is not None
        or _COMMAND.search(body) is not None
        or _says_that_it_is_requeued(body)
        or _says_that_it_runs_again(body)
    )


def _says_that_it_begins(body: str) -> bool:
    return any(word in body for word in _SAYS_SO) and _BEGINS_AGAIN.search(body) is not None


def _says_that_it_runs_again(body: str) -> bool:
    return any(word in body for word in _AGAIN_WORDS) and _RUN_AGAIN.search(body) is not None


def _says_that_it_is_requeued(body: str) -> bool:
    return "equeued" in body and _REQUEUED.search(body) is not None


def _note_label(starts: Starts, label: int, line: LogLine) -> None:
    if _OF_AN_END.search(line.body) is not None:
        starts.ended, starts.by_scheduler = line.number, False
    elif label > max(starts.label, 0 if starts.by_scheduler else 1) and (
        starts.awaits_another() or _heads_another(starts, line)
    ):
        starts.begins, starts.sure = line.number, True
    starts.label = max(label, starts.label)


def _seems_to_begin(body: str, starts: Starts) -> bool:
    if _STARTED_AGAIN.search(body) is not None:
        return True
    return starts.by_scheduler and _PREPARES.search(body) is not None


def _heads_another(starts: Starts, line: LogLine) -> bool:
    """Whether the line is set off as a heading, and trouble that training did not get over stands before it."""
    body = line.body
    return starts.trouble > 0 and _HEADING.search(body) is not None and not _OF_MANY.search(body)


def _number(match: Match) -> int:
    again = match["again"]
    if match["word"]:
        return _WORDS.index(match["word"].casefold()) + 1
    return int(again) + 1 if again else int(match["nth"] or match["th"])
