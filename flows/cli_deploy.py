"""`overland deploy`: set up a Prefect server, as often as you like."""

from __future__ import annotations

import sys
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from configs.checks import check_config, check_launchable
from configs.errors import ConfigError
from configs.files import resolved
from configs.load import load_config
from configs.schema import RunConfig
from flows.cli_options import Json


def deploy(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Overrides of the config of --run."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The server's API. [default: PREFECT_API_URL]"),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="CONFIG", help="Also give this run a deployment of its own."),
    ] = None,
    cron: Annotated[
        str | None, typer.Option(help="Start the run of --run then, like '0 2 * * *'.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Of --cron, like Europe/Berlin. [default: UTC]")
    ] = None,
    remove: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Remove the deployment of the run of this name."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Another prefect.yaml than Overland's own.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; say what would change.")
    ] = False,
    json: Json = False,
) -> None:
    """Set up a Prefect server: work pool, deployments, schedules, and restarts after crashes."""
    if run is None and (cron or timezone or overrides):
        raise ConfigError("--cron, --timezone and KEY=VALUE belong to --run CONFIG")
    if timezone and not cron:
        raise ConfigError("--timezone belongs to --cron")
    from flows.deploy.apply import Deployer
    from flows.deploy.server import connected
    from flows.deploy.wanted import PREFECT_FILE, deployment_of_run, read_wanted
    from flows.show.deploy import print_deploy
    from flows.show.report import report_console

    wanted = read_wanted(resolved(file) if file else PREFECT_FILE)
    if any(remove == deployment.name for deployment in wanted):
        raise ConfigError(f"--remove {remove}: this deployment is Overland's own, and no run's")
    if run is not None:
        wanted.append(deployment_of_run(wanted, _checked(run, overrides), cron, timezone))
    with connected(server) as client:
        deployer = Deployer(client, dry_run=dry_run)
        changes = list(deployer.deploy(wanted))
        if remove is not None:
            changes.append(deployer.remove("pipeline", remove))
        url = str(client.api_url).rstrip("/")
        idle = deployer.pools_without_worker(wanted)
    if json:
        report = {
            "server": url,
            "dry_run": dry_run,
            "changes": [asdict(change) for change in changes],
            "pools_without_worker": idle,
        }
        typer.echo(dumps(report))
    else:
        print_deploy(url, changes, idle, report_console(sys.stdout), dry_run=dry_run)


def _checked(path: Path, overrides: list[str] | None) -> RunConfig:
    """As `overland run` checks it."""
    config = load_config(path, overrides or [])
    check_config(config)
    check_launchable(config)
    return config
