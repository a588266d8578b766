"""What `overland chaos --failures` prints: one JSON object, or a table for people."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Mapping
from typing import Any

import typer
from rich.table import Table

from flows.show.report import report_console
from flows.show.words import plural


def print_failures(report: Mapping[str, Any], *, json: bool) -> None:
    """Print the trials: a row each, and what they have shown together."""
    if json:
        typer.echo(json_module.dumps(report))
        return
    console = report_console(sys.stdout)
    table = Table()
    for heading in ("failure", "how", "class", "action", "what was done", "result"):
        table.add_column(heading)
    for trial in report["details"]:
        table.add_row(
            trial["name"],
            trial["how"],
            _found(trial["class"], trial["found_class"]),
            _found(trial["action"], trial["found_action"]),
            _done(trial),
            "\n".join(trial["problems"]) or "right",
        )
    console.print(table)
    share = report["unattended_share"]
    alone = "" if share is None else (
        f"{report['went_on_alone']} of {report['need_nobody']} that need nobody went on and finished alone "
        f"({share:.0%}); "
    )  # fmt: skip
    console.print(
        f"{plural(report['trials'], 'trial')} of "
        f"{plural(report['failure_classes'], 'failure class', 'failure classes')}: "
        f"{report['right_verdicts']} right verdicts, {report['right_actions']} right actions; {alone}"
        f"{plural(report['wrong_restarts'], 'wrong restart')}"
    )
    if report["failed"]:
        console.print(f"failed: {', '.join(report['failed'])}, kept in {report['folder']}")


def _found(expected: str, found: str | None) -> str:
    return expected if found == expected else f"{found or 'none'} (not {expected})"


def _done(trial: Mapping[str, Any]) -> str:
    end = "finished" if trial["finished"] else "stopped"
    return f"{plural(trial['restarts'], 'restart')}, {end}" if trial["restarts"] else end
