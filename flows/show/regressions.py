"""The regressions of a run in its report: one line a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flows.show import words
from flows.show.layout import print_tight, section, two_columns
from flows.show.summary import RegressionSummary

_MAX_REGRESSIONS = 10


def print_regressions(regressions: Sequence[RegressionSummary], console: Console) -> None:
    """Print which checkpoints score worse than those before: the last ones."""
    if not regressions:
        return
    section("regressions", console)
    if len(regressions) > _MAX_REGRESSIONS:
        earlier = len(regressions) - _MAX_REGRESSIONS
        console.print(Text(f"{earlier} earlier ones in evaluations/*/regressions.json", "dim"))
    table = two_columns()
    for regression in regressions[-_MAX_REGRESSIONS:]:
        health = Text("not healthy: ", "bold red") if regression.unhealthy else Text()
        message = Text(words.clean(regression.message, 300), "" if regression.new else "dim")
        table.add_row(Text(f"step {regression.step:,}"), Text.assemble(health, message))
    print_tight(table, console)
