"""What `overland chaos --evaluation` prints: one JSON object, or a table for people."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Mapping
from typing import Any

import typer
from rich.table import Table

from flows.show.report import report_console
from flows.show.words import plural


def print_evaluation_chaos(report: Mapping[str, Any], *, json: bool) -> None:
    """Print the trials: a row each, and what they have shown together."""
    if json:
        typer.echo(json_module.dumps(report))
        return
    console = report_console(sys.stdout)
    table = Table()
    for heading in ("trial", "strikes", "starts", "begun again", "twice", "result"):
        table.add_column(heading, justify="left" if heading in ("strikes", "result") else "right")
    for trial in report["details"]:
        table.add_row(
            str(trial["number"]),
            "\n".join(trial["planned"]),
            str(trial["starts"]),
            str(trial["shards_begun_again"]),
            str(len(trial["shards_twice"])),
            "\n".join(trial["problems"]) or "identical",
        )
    console.print(table)
    console.print(
        f"{report['identical']} of {plural(report['trials'], 'trial')} with the undisturbed scores bit "
        f"for bit; {plural(report['shards_twice'], 'shard')} answered twice; "
        f"{plural(report['shards_begun_again'], 'shard')} begun again, of "
        f"{plural(report['workers_lost'], 'worker')} that died"
    )
    if report["failed"]:
        console.print(f"failed: {report['failed']}, kept in {report['folder']}")
