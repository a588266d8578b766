"""The `overland` command: a thin layer over the flows.

Results go to standard output, progress and errors to standard error. Exit codes: 0 done, 1 the run
failed (with the verdict), 2 wrong input, 75 stopped as its stop file asked, 130 interrupted from the keyboard. Prefect is imported only
by the commands that run a flow, and after the config has been checked: a typing mistake is answered
at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from configs.checks import check_config, check_launchable
from configs.errors import (
    EXIT_BAD_INPUT,
    InputError,
    OverlandError,
    RunFailedError,
    RunStoppedError,
)
from configs.files import resolved
from configs.load import load_config
from configs.rundir import RunDir
from configs.schema import RunConfig
from flows.cli_bench import bench
from flows.cli_chaos import chaos
from flows.cli_deploy import deploy
from flows.cli_diagnose import diagnose
from flows.cli_doctor import doctor
from flows.cli_evaluate import evaluate
from flows.cli_nodecheck import nodecheck
from flows.cli_options import Json
from flows.cli_plan import plan
from flows.cli_simulate import simulate
from flows.locks import check_free
from flows.site import check_site
from infra import interrupt

PREFECT_DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}
"""Prefect's settings where the user has not said otherwise."""

app = typer.Typer(
    name="overland",
    help="Train and evaluate language models through failures.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(bench, name="bench")
app.add_typer(plan, name="plan")
app.add_typer(simulate, name="simulate")
app.command()(chaos)
app.command()(deploy)
app.command()(diagnose)
app.command()(doctor)
app.command()(evaluate)
app.command()(nodecheck)

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML config file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, like train.steps=50 run_dir=DIR."),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Run directory.")]


@app.command()
def run(config: ConfigPath, overrides: Overrides = None, json: Json = False) -> None:
    """Prepare data, pretrain and evaluate; run again, it continues where it was interrupted."""
    checked = _checked_config(config, overrides, "prepare", "pretrain", "evaluate")
    from flows.pipeline import pipeline

    _run_flow(checked, lambda: pipeline(checked), json=json)


@app.command()
def prepare(config: ConfigPath, overrides: Overrides = None, json: Json = False) -> None:
    """Only prepare the data set."""
    checked = _checked_config(config, overrides, "prepare")
    from flows.prepare import prepare as prepare_flow

    manifest = _with_progress(checked, lambda: prepare_flow(checked))
    text = manifest.model_dump_json() if json else manifest.model_dump_json(indent=2)
    typer.echo(text)


@app.command()
def pretrain(config: ConfigPath, overrides: Overrides = None, json: Json = False) -> None:
    """Only pretrain, on a data set that was prepared in the run directory."""
    checked = _checked_config(config, overrides, "pretrain")
    from flows.pretrain import pretrain as pretrain_flow

    _run_flow(checked, lambda: pretrain_flow(checked), json=json)


@app.command()
def status(run_dir: RunPath) -> None:
    """Say where a run stands."""
    from flows.locks import is_live
    from flows.show.report import print_status, report_console
    from tasks.recover.task import account_goodput

    run = RunDir(resolved(run_dir))
    if not run.config_path.is_file():
        raise InputError(f"{run_dir} is no run directory: it has no config.yaml")
    live = is_live(run)
    goodput = account_goodput(run, live=live) if run.attempts() else None
    print_status(run, report_console(sys.stdout), live=live, goodput=goodput)


@app.command()
def check(config: ConfigPath, overrides: Overrides = None) -> None:
    """Check a config, and print the model's size and its memory on one GPU."""
    from flows.show.plan import print_plan

    checked = load_config(config, overrides or [])
    check_config(checked)
    check_launchable(checked)
    print_plan(checked, Console())


@app.command()
def track(run_dir: RunPath) -> None:
    """Tell MLflow what it has missed of a run."""
    from flows.session import config_of
    from infra.track import catch_up

    config = config_of(run_dir)
    catch_up(RunDir(config.resolved_run_dir()), config.tracking)


@app.command()
def ui(
    runs: Annotated[Path, typer.Option(help="Folder of the run directories.")] = Path("runs"),
    prefect_port: Annotated[int, typer.Option(help="Port of the Prefect page.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Port of the MLflow page.")] = 5000,
) -> None:
    """Open the Prefect and MLflow pages over the same data; ends with Ctrl-C."""
    from flows.ui import serve_pages

    with interrupt.exit_on_sigterm(code=0):  # So that the servers are ended too.
        serve_pages(runs, prefect_port=prefect_port, mlflow_port=mlflow_port)


def _checked_config(path: Path, overrides: list[str] | None, *stages: str) -> RunConfig:
    """The config, after all checks that need no Prefect; the flow makes them again."""
    config = load_config(path, overrides or [])
    check_config(config)
    check_launchable(config)
    check_free(RunDir(config.resolved_run_dir()), *stages)
    check_site(config, *stages)
    return config


def _run_flow(config: RunConfig, flow: Callable[[], object], *, json: bool) -> None:
    """Run a flow that trains, then print the run's summary, whether it failed or not."""
    from flows.session import summarize

    run = RunDir(config.resolved_run_dir())
    try:
        _with_progress(config, flow)
    except InputError:
        raise
    except RunStoppedError as error:
        typer.echo(str(error), err=True)
        _report(summarize(run, config), json=json)
        raise typer.Exit(error.exit_code) from error
    except RunFailedError as error:
        _print_error(error)
        _report(summarize(run, config), json=json)
        raise typer.Exit(error.exit_code) from error
    except OverlandError as error:
        _print_error(error)
        _report(summarize(run, config, failure=str(error)), json=json)
        raise typer.Exit(error.exit_code) from error
    except Exception as error:
        # A bug, or the machine's failure: its traceback follows, but what was reached comes first.
        if run.attempts():
            _report(summarize(run, config, failure=repr(error)), json=json)
        raise
    _report(summarize(run, config), json=json)


def _with_progress(config: RunConfig, flow: Callable[[], Any]) -> Any:
    """Run the flow under the progress display, with Prefect's own log in the run directory."""
    from flows.logs import log_to_run_directory
    from flows.prefect_server import use_prefect_server
    from flows.session import check_run
    from flows.show.progress import show_progress

    run = check_run(config)
    log_to_run_directory(run)
    try:
        with show_progress(run, total_steps=config.train.steps):
            use_prefect_server()
            return flow()
    except KeyboardInterrupt:  # typer turns it into exit code 130
        typer.echo("interrupted: run the same command again to continue", err=True)
        raise


def _report(summary: Any, *, json: bool) -> None:
    from flows.show.report import print_report, report_console

    if json:
        typer.echo(summary.model_dump_json())
    else:
        print_report(summary, report_console(sys.stdout))


def _print_error(error: Exception) -> None:
    """Each sentence of wrong input is a mistake of its own; other errors may go on in further lines."""
    text = str(error)
    is_input = isinstance(error, OverlandError) and error.exit_code == EXIT_BAD_INPUT
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for line in text.splitlines() if is_input and text else [text]:
        is_new = line[:1] not in (" ", "\t")
        console.print(f"{'[bold red]error:[/] ' if is_new else ''}{_escaped(line)}")


def _escaped(text: str) -> str:
    from rich.markup import escape

    from flows.show.words import printable

    return escape(printable(text))


def main() -> None:
    """Entry point of the console script."""
    for name, value in PREFECT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    interrupt.install()
    try:
        app()
    except OverlandError as error:
        _print_error(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
