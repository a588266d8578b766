"""What `overland chaos` prints: one JSON object, or a table for people."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Mapping
from typing import Any

import typer
from rich.table import Table

from flows.show.report import report_console
from flows.show.words import plural


def print_chaos(report: Mapping[str, Any], *, json: bool) -> None:
    """Print the trials: a row each, and what they have shown together."""
    if json:
        typer.echo(json_module.dumps(report))
        return
    console = report_console(sys.stdout)
    table = Table()
    table.add_column("trial", justify="right")
    table.add_column("strikes")
    for heading in ("held", "resumed", "lost", "restart"):
        table.add_column(heading, justify="right")
    table.add_column("result")
    for trial in report["details"]:
        restarts = trial["restarts"]
        table.add_row(
            str(trial["number"]),
            "\n".join(trial["planned"]),
            _column(str(r["held_step"]) for r in restarts),
            _column(f"{r['resumed_step']} ({r['loaded_from']})" for r in restarts),
            _column(str(r["lost_steps"]) for r in restarts),
            _column("" if r["restart_s"] is None else f"{r['restart_s']:.1f} s" for r in restarts),
            _result(trial),
        )
    console.print(table)
    restart = "" if report["restart_s"] is None else f", median {report['restart_s']:.1f} s"
    console.print(
        f"{report['identical']} of {plural(report['trials'], 'trial')} identical to the undisturbed run "
        f"bit for bit; {plural(report['lost_steps'], 'step')} lost; "
        f"{plural(report['restarts'], 'restart')}{restart}"
    )
    if "duplicate_jobs" in report:
        console.print(
            f"{plural(report['duplicate_jobs'], 'duplicate job')}, "
            f"{plural(report['orphan_jobs'], 'orphan job')}"
        )
    if report["failed"]:
        console.print(f"failed: {report['failed']}, kept in {report['folder']}")


def _column(values: Any) -> str:
    return "\n".join(values)


def _result(trial: Mapping[str, Any]) -> str:
    if not trial["strikes"]:
        return "never struck"
    found = [*trial["problems"], *(f"left behind: {left}" for left in trial["leftovers"])]
    return "\n".join(found) or "identical"
