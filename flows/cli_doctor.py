"""`overland doctor`: whether a site can run Overland, before a run finds out."""

from __future__ import annotations

import sys
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.checks import check_launchable
from configs.errors import EXIT_RUN_FAILED
from configs.load import load_config
from configs.schema import RunConfig
from flows.cli_options import Json

if TYPE_CHECKING:
    from infra.doctor import Site


def doctor(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, like launcher.kind=slurm."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The config of a run: its places and servers are looked at.")
    ] = None,
    queue_limit_s: Annotated[
        float, typer.Option(min=1, help="How long the small Slurm job may wait for nodes.")
    ] = 60.0,
    json: Json = False,
) -> None:
    """Check machine, storage, servers and Slurm; each line is ok, or says what to do."""
    checked = load_config(config, overrides or [])
    check_launchable(checked)
    from flows.show.doctor import DoctorPrinter
    from flows.show.report import report_console
    from infra.doctor import Status, checks_of, examine

    site = _site(checked, config is not None, queue_limit_s)
    printer = None if json else DoctorPrinter(report_console(sys.stdout))
    found = []
    checks = checks_of(site)
    looks = examine(checks, printer.wait_for) if printer else examine(checks)
    for check, findings in looks:
        found += [(check.group, finding) for finding in findings]
        if printer is not None:
            printer.show(check.group, findings)
    passed = all(finding.status is not Status.FAILED for _, finding in found)
    if printer is not None:
        printer.finish([finding for _, finding in found])
    else:
        lines = [{"group": group, **asdict(finding)} for group, finding in found]
        typer.echo(dumps({"ok": passed, "findings": lines}))
    if not passed:
        raise typer.Exit(EXIT_RUN_FAILED)


def _site(config: RunConfig, has_config: bool, queue_limit_s: float) -> Site:
    """With the Prefect server that flows here would use."""
    from prefect import __version__
    from prefect.settings import PREFECT_API_URL

    from flows.deploy.server import credentials
    from infra.doctor import Site

    return Site(
        config=config,
        has_config=has_config,
        prefect_url=PREFECT_API_URL.value(),
        prefect_version=__version__,
        prefect_headers=credentials(),
        queue_limit_s=queue_limit_s,
    )
