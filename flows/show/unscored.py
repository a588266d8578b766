"""The tasks of a run that could not be scored, in its report: one line each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flows.show import words
from flows.show.layout import print_tight, section, two_columns
from flows.show.summary import UnscoredTask

_MAX_TASKS = 10


def print_unscored(tasks: Sequence[UnscoredTask], console: Console) -> None:
    """Print which tasks have no scores, and why: the last ones."""
    if not tasks:
        return
    section("tasks without scores", console, style="bold yellow")
    if len(tasks) > _MAX_TASKS:
        earlier = len(tasks) - _MAX_TASKS
        console.print(Text(f"{earlier} earlier ones in evaluations/*/scores.json", "dim"))
    table = two_columns()
    for task in tasks[-_MAX_TASKS:]:
        name = Text(f"{words.clean(task.task, 60)}: ", "yellow")
        reason = Text(words.clean(task.reason, 300))
        table.add_row(Text(f"step {task.step:,}"), Text.assemble(name, reason))
    print_tight(table, console)
