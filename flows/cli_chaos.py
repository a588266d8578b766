"""`overland chaos`: whether training survives what can happen to its processes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from configs.errors import EXIT_RUN_FAILED, InputError
from flows.cli_options import Json


def chaos(
    runs: Annotated[int, typer.Option(min=1, help="Trials, each a small training run.")] = 30,
    seed: Annotated[int, typer.Option(help="All that is random follows from it.")] = 0,
    trial: Annotated[
        int | None, typer.Option(min=1, help="Repeat only this one of the trials.")
    ] = None,
    failures: Annotated[
        bool,
        typer.Option(
            "--failures",
            help="Cause every kind of failure instead, and check verdict, action and what follows.",
        ),
    ] = False,
    classes: Annotated[
        str | None,
        typer.Option(help="With --failures: only these classes or failures, like KeyError,Hang."),
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
    if classes is not None and not failures:
        raise InputError("--classes chooses among failures: give --failures too")
    if failures and trial is not None:
        raise InputError("--trial is of no use with --failures: name the failure with --classes")
    report = (
        _failures(classes, seed, folder, json)
        if failures
        else _strikes(runs, seed, trial, folder, json)
    )
    if report["failed"]:
        raise typer.Exit(EXIT_RUN_FAILED)


def _strikes(
    runs: int, seed: int, trial: int | None, folder: Path | None, json: bool
) -> dict[str, Any]:
    from flows.chaos.run import run_chaos
    from flows.show.chaos import print_chaos

    report = run_chaos(trials=runs, seed=seed, only=trial, folder=folder, say=_say)
    print_chaos(report, json=json)
    return report


def _failures(classes: str | None, seed: int, folder: Path | None, json: bool) -> dict[str, Any]:
    from flows.chaos.failures import run_failures
    from flows.show.failures import print_failures

    wanted = [word.strip() for word in (classes or "").split(",") if word.strip()]
    report = run_failures(classes=wanted, seed=seed, folder=folder, say=_say)
    print_failures(report, json=json)
    return report


def _say(text: str) -> None:
    typer.echo(text, err=True)
