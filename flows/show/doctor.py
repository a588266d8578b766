"""What `overland doctor` prints for people: a line for each thing that was looked at."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.show.layout import print_tight, section
from flows.show.words import plural
from infra.doctor import Check, Finding, Status

_MARKS = {
    Status.OK: ("ok", "green"),
    Status.WARNING: ("warning", "bold yellow"),
    Status.FAILED: ("failed", "bold red"),
    Status.SKIPPED: ("skipped", "dim"),
}


class DoctorPrinter:
    """Prints findings as they come, under the heading of their group."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._group = ""
        self._waiting = console.status("", spinner="dots")

    def wait_for(self, check: Check) -> None:
        """Say on a terminal what takes its time."""
        if self._console.is_terminal:
            self._waiting.update(Text(f"{check.subject} ...", "dim"))
            self._waiting.start()

    def show(self, group: str, findings: Iterable[Finding]) -> None:
        self._waiting.stop()
        if group != self._group:
            section(group, self._console)
            self._group = group
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=7, no_wrap=True)
        table.add_column(width=22)
        table.add_column(overflow="fold")
        for finding in findings:
            word, style = _MARKS[finding.status]
            quiet = "dim" if finding.status is Status.SKIPPED else ""
            table.add_row(
                Text(word, style), Text(finding.subject, quiet), Text(finding.sentence, quiet)
            )
        print_tight(table, self._console)

    def finish(self, findings: list[Finding]) -> None:
        """The sum of it, in one line."""
        count = {status: sum(f.status is status for f in findings) for status in Status}
        parts = [
            f"{count[Status.OK]} ok",
            plural(count[Status.WARNING], "warning") if count[Status.WARNING] else "",
            f"{count[Status.FAILED]} failed" if count[Status.FAILED] else "",
            f"{count[Status.SKIPPED]} skipped" if count[Status.SKIPPED] else "",
        ]
        style = "red" if count[Status.FAILED] else "yellow" if count[Status.WARNING] else "green"
        self._console.print()
        self._console.print(Text(", ".join(part for part in parts if part), f"bold {style}"))
