"""Lines that say that something is not there: what a program then meets is nothing where an object was to be.

Such an error (`'NoneType' object has no attribute 'sizes'`) only comes of it, so that the line before it tells the cause.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tasks.diagnose.findings import Finding
from tasks.diagnose.handled import says_handled
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.raised import Raised

_WORDS = (
    "exist",
    "found",
    "such",
    "unable",
    "could",
    "cannot",
    "can't",
    "can not",
    "fail",
    "missing",
    "refused",
    "denied",
)
"""In lower case: a line with none of them is none."""
_MISSING = compile_pattern(
    r"(?i)\b(?:(?:does|do|did) ?(?:not|n.t) exist|not found|no such (?:file|director\w+|key|model|dataset)|is missing|(?:connection|access) (?:was )?(?:refused|denied)|permission denied|"
    r"(?:cannot|can ?not|can.t|could not|couldn.t|unable to|failed to) (?:be )?(?:find|found|open|load|read|locate|fetch|download|connect|reach|access|import|mmap|parse)\w*)\b"
)
_GOES_ON = compile_pattern(
    r"(?i)\b(?:from scratch|random(?:ly)?|defaults?|will not (?:load|use)|start(?:ing|s)? (?:anew|from|with)|creat(?:e|es|ing)|build(?:ing|s)?|instead)\b"
)
_BY_REASON = compile_pattern(
    r"(?i)(?P<PermissionError>permission denied|access denied)|(?P<ImportError>\bimport\w*|\bshared object\b|\b(?:module|library|package|plugin|extension)\b)"
)
_BY_THING = compile_pattern(
    r"(?i)(?P<ConnectionError>\b(?:connect\w*|server|endpoint|service)\b)|"
    r"(?P<DatasetLoadingError>\bdata ?sets?\b|\b(?:corpus|shards?|samples?|records?|document index)\b|\.(?:idx|bin|parquet|jsonl|arrow|tar|mds|h5)\b)|"
    r"(?P<ModelLoadingError>\b(?:checkpoints?|ckpt|weights?|models?|state[_ ]dict|tokenizer|snapshot)\b|\.(?:pth?|safetensors|ckpt|distcp)\b)|"
    r"(?P<FileNotFoundError>\b(?:files?|director\w+|path|folder)\b|(?:^|\s)/\w)"
)
_LINES_BEFORE = 8


@dataclass
class MissingThings:
    """Feed it lines; it holds the newest such line of each file, and the steps that the file had reported before it."""

    last: dict[str, tuple[LogLine, int]] = field(default_factory=dict)

    def feed(self, line: LogLine, steps: int) -> None:
        """Take note of one line."""
        if says_missing(line.body) and not says_handled(line.body):
            self.last[line.file] = (line, steps)

    def merge(self, other: MissingThings) -> None:
        """Add what other files tell."""
        self.last.update(other.last)

    def behind(self, raised: Raised, finding: Finding | None, steps: int) -> Finding | None:
        """The finding of an exception, or what was missing just before it if it only met nothing."""
        if finding is None or finding.method != "exception" or not raised.root().of_none:
            return finding
        said, told_at = self.last.get(raised.line.file, (None, -1))
        if said is None or told_at != steps or said.rank not in (None, raised.line.rank):
            return finding
        begun_at = raised.root().begun_at
        thing = _BY_REASON.search(said.body) or _BY_THING.search(said.body)
        if thing is None or not begun_at - _LINES_BEFORE <= said.number < begun_at:
            return finding
        name = next(name for name, found in thing.groupdict().items() if found)
        return replace(finding, failure_class=name, line=said, rank=raised.line.rank)


def says_missing(body: str) -> bool:
    """Whether the line says that something is not there, and not that its program goes on without."""
    lower = body.lower()
    if not any(word in lower for word in _WORDS):
        return False
    return _MISSING.search(body) is not None and _GOES_ON.search(body) is None
