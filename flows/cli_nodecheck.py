"""`overland nodecheck`: find nodes that do not work, by hand. Needs no run and no Prefect server."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from configs.checks import check_config, check_launchable
from configs.errors import EXIT_OK, EXIT_RUN_FAILED, InputError
from configs.files import resolved
from configs.load import load_config
from configs.nodecheck import REPORT_NAME, NodeCheckReport
from configs.schema import RunConfig
from flows.cli_options import Json

EXIT_FAULTY = 3
"""At least one node is faulty or down."""
EXIT_DOUBTFUL = 4
"""None is, but one is slow or could not be told apart, or a pair of good nodes has failed together."""


def nodecheck(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="YAML config file: its launcher is used.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Like recovery.node_check.trials=10."),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Nodes to check. [default: all that jobs can run on; on one machine, its processes]",
        ),
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="Take faulty nodes out of service.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where the check's files go, on storage that the nodes share; one that was interrupted"
            " goes on there. [default: a new one in nodechecks/ beside the run directory]"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Have nodes compute and talk in pairs, and say which do not work.

    Exit code 0: all good; 3: some are faulty or down; 4: some are slow or in doubt; 1: the check did not
    end; 2: wrong input.
    """
    checked = load_config(config, overrides or [])
    check_config(checked)
    check_launchable(checked)
    from flows.show.nodecheck import print_nodecheck
    from flows.show.report import report_console
    from flows.show.words import plural
    from infra.launch import require_site
    from tasks.recover.task import all_nodes, check_nodes

    require_site(checked.launcher, folder=_place(checked, folder))
    checked = _with_drain(checked, drain)
    wanted = all_nodes(checked)
    if nodes is not None:
        wanted = _named(nodes, known=all_nodes(checked, also_down=True))
    if not wanted:
        raise InputError("there is no node that jobs can run on: see `sinfo`")
    place = _folder(checked, folder)
    _say(f"checking {plural(len(wanted), 'node')} in {place}")
    if drain and checked.launcher.kind == "local":
        _say("--drain does nothing here: the local launcher has one machine only")
    report = check_nodes(checked, place, wanted, say=_say)
    if json:
        typer.echo(report.model_dump_json())
    else:
        print_nodecheck(report, report_console(sys.stdout))
    raise typer.Exit(exit_code(report))


def exit_code(report: NodeCheckReport) -> int:
    """What a report means for a script."""
    if report.named("faulty", "down"):
        return EXIT_FAULTY
    if not report.complete:
        return EXIT_RUN_FAILED
    return EXIT_DOUBTFUL if report.named("slow", "undecided") or report.links else EXIT_OK


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _with_drain(config: RunConfig, drain: bool) -> RunConfig:
    settings = config.recovery.node_check.model_copy(update={"drain": drain})
    recovery = config.recovery.model_copy(update={"node_check": settings})
    return config.model_copy(update={"recovery": recovery})


def _named(text: str, known: list[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("--nodes is empty: give names like --nodes node1,node2")
    if unknown := sorted(set(names) - set(known)):
        raise InputError(
            f"--nodes: there is no {unknown[0]!r}; there are {', '.join(known[:8])}"
            + (" and others" if len(known) > 8 else "")
        )
    return list(dict.fromkeys(names))


def _place(config: RunConfig, folder: Path | None) -> Path:
    """The folder that is given, or that of all checks."""
    return resolved(folder or config.resolved_run_dir().parent / "nodechecks")


def _folder(config: RunConfig, folder: Path | None) -> Path:
    """Where the check's files go; it is there, and can be written."""
    place = _place(config, folder)
    if folder is None:
        place /= time.strftime("%Y%m%d-%H%M%S")
    if (place / REPORT_NAME).exists():
        raise InputError(
            f"--folder {place} holds the report of a check that has ended: give a new one"
        )
    try:
        place.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=place).close()
    except OSError as error:
        raise InputError(
            f"the check's folder {place} cannot be made or written ({error.strerror}): give another --folder, "
            "on storage that the nodes share"
        ) from error
    return place
