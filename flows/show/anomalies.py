"""The anomalies of a run in its report: one line each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flows.show import words
from flows.show.layout import print_tight, section, two_columns
from flows.show.summary import AnomalySummary

_MAX_ANOMALIES = 10


def print_anomalies(anomalies: Sequence[AnomalySummary], console: Console) -> None:
    """Print what went wrong without failing: the last ones."""
    if not anomalies:
        return
    section("anomalies", console)
    if len(anomalies) > _MAX_ANOMALIES:
        earlier = len(anomalies) - _MAX_ANOMALIES
        console.print(Text(f"{earlier} earlier ones in attempts/*/events.jsonl", "dim"))
    table = two_columns()
    for anomaly in anomalies[-_MAX_ANOMALIES:]:
        kind = Text(words.anomaly(anomaly.kind), style="bold red" if anomaly.fatal else "yellow")
        message = words.clean(anomaly.message, 200)
        table.add_row(Text(f"step {anomaly.step:,}"), Text.assemble(kind, f": {message}"))
    print_tight(table, console)
