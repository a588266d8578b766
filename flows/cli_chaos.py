"""`overland chaos`: whether training survives what can happen to its processes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from configs.errors import EXIT_RUN_FAILED

Json = Annotated[bool, typer.Option("--json", help="End with one JSON object on standard output.")]


def chaos(
    runs: Annotated[int, typer.Option(min=1, help="Trials, each a small training run.")] = 30,
    seed: Annotated[int, typer.Option(help="All that is random follows from it.")] = 0,
    trial: Annotated[
        int | None, typer.Option(min=1, help="Repeat only this one of the trials.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="An empty folder for the trials. [default: a temporary one]"),
    ] = None,
    json: Json = False,
) -> None:
    """Kill and stop processes of small training runs at random moments, and compare the results."""
    # So that the trial under way is ended too: its job would train on.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    from flows.chaos.run import run_chaos
    from flows.show.chaos import print_chaos

    report = run_chaos(
        trials=runs,
        seed=seed,
        only=trial,
        folder=folder,
        say=lambda text: typer.echo(text, err=True),
    )
    print_chaos(report, json=json)
    if report["failed"]:
        raise typer.Exit(EXIT_RUN_FAILED)
