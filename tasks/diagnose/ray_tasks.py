"""Where a Ray task ran whose error another process reports: Ray puts its address before the task's own traceback."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_TASK = compile_pattern(
    r"\bray::[^(]{1,200}\(\) ?\([^)]{0,80}\bip=(?P<address>[\d.]+\d|[0-9a-fA-F:]{3,39})"
)
_WORKER = compile_pattern(r"^\([\w.:<> -]{1,200}, ip=(?P<address>[\d.]+\d)[,)]")
_LINES_OF_A_TRACEBACK = 200


@dataclass
class RayTasks:
    """Feed it lines; it knows where the task ran whose traceback is being read."""

    _last: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By file: the line, and the address in it."""

    def feed(self, line: LogLine) -> None:
        """Take note of one line."""
        if names_ray_task(line.text) and (match := _TASK.search(line.text)) is not None:
            self._last[line.file] = (line.number, match["address"])

    def address_of(self, line: LogLine) -> str | None:
        """Of an error's line: where the task that raised it ran."""
        if (match := _WORKER.match(line.text)) is not None:
            return str(match["address"])
        number, address = self._last.pop(line.file, (0, ""))
        return address if address and line.number - number <= _LINES_OF_A_TRACEBACK else None


def names_ray_task(text: str) -> bool:
    """Whether a line may name a task and where it ran."""
    return "ray::" in text
