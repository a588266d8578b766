"""`overland diagnose`: what broke, on which node, and what to do about it, by a job's logs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from configs.diagnose_schema import DiagnoseConfig
from configs.errors import EXIT_BAD_INPUT, ConfigError, InputError, LanguageModelError

if TYPE_CHECKING:
    from infra.language_model import LanguageModel
    from tasks.diagnose.answer import Diagnosis

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
            help="Confirm or correct a diagnosis that was given, by its id or its file: it is learnt from.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Config whose `diagnose` section says where cases are kept and which model may be asked.",
        ),
    ] = None,
) -> None:
    """Say what broke, where, and what to do. Exit code 2 when an input cannot be read."""
    from tasks.diagnose.answer import confirm_diagnosis

    settings = _settings(config)
    if sys.stdout is None:
        raise InputError("standard output is closed: the answer has nowhere to go")
    if confirm is None and not paths:
        raise InputError("say which logs to diagnose: files, a directory, or - for standard input")
    try:
        if confirm is not None:
            _print_confirmed(confirm_diagnosis(*confirm, settings), json=json)
        readable = _print_answers(paths or [], settings, json=json)
    except BrokenPipeError:
        raise  # a reader that has seen enough: click ends quietly
    except OSError as error:
        raise InputError(f"the answer cannot be written: {error.strerror}") from error
    if not readable:
        raise typer.Exit(EXIT_BAD_INPUT)


def _settings(path: Path | None) -> DiagnoseConfig:
    """The file's `diagnose` section; without a file, the defaults, which ask no model."""
    from configs.diagnose_checks import check_diagnose
    from configs.load import load_config

    settings = DiagnoseConfig() if path is None else load_config(path).diagnose
    if problems := list(check_diagnose(settings)):
        raise ConfigError("\n".join(problems))
    return settings


def _print_answers(paths: list[str], settings: DiagnoseConfig, *, json: bool) -> bool:
    """Print an answer for each path; whether all could be read."""
    from flows.show.diagnosis import print_folder
    from flows.show.report import report_console
    from flows.show.words import printable
    from tasks.diagnose.answer import answer

    console, readable, noted, folder = report_console(sys.stdout), True, True, None
    with _model(settings) as model:
        for found in answer(paths, settings, model):
            errors = [str(found)] if isinstance(found, InputError) else found.unreadable.values()
            for error in errors:
                readable = False
                typer.echo(f"error: {printable(error)}", err=True)
            if isinstance(found, InputError):
                continue
            if not json and found.folder is not None and found.folder != folder:
                folder = found.folder
                print_folder(folder.name, folder.logs)
            _print_answer(found, console, json=json)
            noted = noted and found.can_be_confirmed
    if not noted:
        store = settings.resolved_store()
        typer.echo(f"note: {store} cannot be written: --confirm will not know these", err=True)
    return readable


def _print_answer(found: Diagnosis, console: Console, *, json: bool) -> None:
    from flows.show.diagnosis import print_diagnosis

    if json:
        typer.echo(found.model_dump_json(by_alias=True))
    else:
        print_diagnosis(found, console)


def _print_confirmed(case: Mapping[str, Any], *, json: bool) -> None:
    from flows.show.diagnosis import print_confirmed

    if json:
        typer.echo(dumps({key: case[key] for key in ("id", "class", "diagnosed_as")}))
    else:
        print_confirmed(case)


@contextmanager
def _model(settings: DiagnoseConfig) -> Iterator[LanguageModel | None]:
    """The model that the config names; None without one, or when it cannot be had, which is said."""
    if settings.endpoint is None:
        yield None
        return
    try:
        from infra.language_model import LanguageModel  # its client is an extra

        model = LanguageModel(settings)
    except (LanguageModelError, ImportError) as error:
        typer.echo(f"note: no language model is asked: {error}", err=True)
        yield None
        return
    with model:
        yield model
