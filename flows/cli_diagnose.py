"""`overland diagnose`: what broke, on which node, and what to do about it, by a job's logs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from configs.errors import EXIT_BAD_INPUT, InputError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for each input.")]


def diagnose(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH...", help="Log files, directories of logs, run directories, or - (stdin)."
        ),
    ] = None,
    json: Json = False,
    confirm: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="ID CLASS",
            help="Confirm or correct a diagnosis that was given: it is learnt from.",
        ),
    ] = None,
) -> None:
    """Say what broke, where, and what to do. Exit code 2 when an input cannot be read."""
    from flows.show.diagnosis import print_confirmed, print_diagnosis
    from flows.show.report import report_console
    from tasks.diagnose.answer import answer, confirm_diagnosis

    if confirm is not None:
        print_confirmed(confirm_diagnosis(*confirm))
    elif not paths:
        raise InputError("say which logs to diagnose: files, a directory, or - for standard input")
    console, unreadable = report_console(sys.stdout), False
    for found in answer(paths or []):
        if isinstance(found, InputError):
            unreadable = True
            typer.echo(f"error: {found}", err=True)
        elif json:
            typer.echo(found.model_dump_json(by_alias=True))
        else:
            print_diagnosis(found, console)
    if unreadable:
        raise typer.Exit(EXIT_BAD_INPUT)
