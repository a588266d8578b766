"""Processes that held a GPU's memory before the job had done a step: they are another's, or left over."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_HELD = compile_pattern(
    r"(?i)(?:compute[-_ ]apps?|nvidia-smi|process(?:es)?|pid|used_\w*memory).{0,160}?\b(?P<pid>\d{3,9})\b[ ,|:]{1,4}.{0,60}?\b\d{3,7} ?MiB"
)
_MAX_PROCESSES = 4096


@dataclass
class GpuStrangers:
    """Feed it lines; it holds the processes."""

    pids: set[int] = field(default_factory=set)

    def feed(self, line: LogLine, steps: int) -> None:
        """Take note of one line; `steps`: that its file has reported before it."""
        if steps or line.rank is not None or "MiB" not in line.body:
            return
        match = _HELD.search(line.body)
        if match is not None and len(self.pids) < _MAX_PROCESSES:
            self.pids.add(int(match["pid"]))

    def merge(self, other: GpuStrangers) -> None:
        """Add what later files tell."""
        self.pids |= other.pids


def tells_of_gpu_process(body: str) -> bool:
    """Whether the line says which process holds a GPU's memory."""
    return "MiB" in body and _HELD.search(body) is not None
