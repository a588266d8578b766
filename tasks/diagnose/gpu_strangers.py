"""Processes that held a GPU's memory before the job had done a step, or are told to be another's or left over."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_HELD = compile_pattern(
    r"(?i)(?:compute[-_ ]apps?|nvidia-smi|process(?:es)?|pid|used_\w*memory).{0,160}?\b(?P<pid>\d{3,9})\b[ ,|:]{1,4}.{0,60}?\b\d{3,7} ?MiB"
)
_STRANGE = (
    r"\b(?:orphan\w*|left[- ]?over|stale|stray|zombie|foreign|not (?:of|from) this job|(?:an)?other (?:job|user)(?:'s)?|"
    r"previous job(?:'s)?)\b"
)
_PROCESS = r"\b(?:pid|process)[ =:#]{1,3}"
_TOLD = compile_pattern(
    rf"(?i){_STRANGE}.{{0,80}}{_PROCESS}(?P<pid>\d{{3,9}})\b|"
    rf"{_PROCESS}(?P<pid_before>\d{{3,9}})\b.{{0,80}}{_STRANGE}"
)
"""As epilogs and clean-ups say it."""
_WORDS = ("pid", "process")
_MAX_PROCESSES = 4096


@dataclass
class GpuStrangers:
    """Feed it lines; it holds the processes."""

    pids: set[int] = field(default_factory=set)

    def feed(self, line: LogLine, steps: int) -> None:
        """Take note of one line; `steps`: that its file has reported before it."""
        if line.rank is not None or len(self.pids) >= _MAX_PROCESSES:
            return
        if not steps and "MiB" in line.body and (match := _HELD.search(line.body)) is not None:
            self.pids.add(int(match["pid"]))
        if (pid := _told_in(line.body)) is not None:
            self.pids.add(pid)

    def merge(self, other: GpuStrangers) -> None:
        """Add what later files tell."""
        self.pids |= other.pids


def tells_of_gpu_process(body: str) -> bool:
    """Whether the line says which process holds a GPU's memory."""
    if "MiB" in body and _HELD.search(body) is not None:
        return True
    return _told_in(body) is not None


def _told_in(body: str) -> int | None:
    """The process that a line says is none of the job's."""
    lower = body.lower()
    if not any(word in lower for word in _WORDS) or (match := _TOLD.search(body)) is None:
        return None
    return int(match["pid"] or match["pid_before"])
