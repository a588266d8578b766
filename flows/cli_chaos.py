"""`overland chaos`: whether training, or evaluation, survives what can happen to its processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.errors import EXIT_RUN_FAILED, InputError
from configs.files import resolved
from flows.cli_options import Json
from infra.interrupt import exit_on_sigterm

if TYPE_CHECKING:
    from flows.chaos.site import Site

_READY_S = 120.0
_MIN_NODES = 3
"""Two train."""


class Where(StrEnum):
    """Launchers that trials can run under."""

    LOCAL = "local"
    SLURM = "slurm"


def chaos(
    runs: Annotated[int, typer.Option(min=1, help="Trials, each a small training run.")] = 30,
    seed: Annotated[int, typer.Option(help="All that is random follows from it.")] = 0,
    trial: Annotated[
        int | None, typer.Option(min=1, help="Repeat only this one of the trials.")
    ] = None,
    launcher: Annotated[
        Where,
        typer.Option(help="Where jobs run; slurm: on a real cluster on this machine."),
    ] = Where.LOCAL,
    cluster: Annotated[
        Path | None,
        typer.Option(
            help="With slurm: the folder of a cluster that is up. [default: one of the trials' own]"
        ),
    ] = None,
    failures: Annotated[
        bool,
        typer.Option(
            "--failures",
            help="Cause every kind of failure instead, and check verdict, action and what follows.",
        ),
    ] = False,
    evaluation: Annotated[
        bool,
        typer.Option("--evaluation", help="Kill processes of evaluations of a tiny model instead."),
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
    if classes is not None and not failures:
        raise InputError("--classes chooses among failures: give --failures too")
    if failures and trial is not None:
        raise InputError("--trial is of no use with --failures: name the failure with --classes")
    if failures and launcher is not Where.LOCAL:
        raise InputError("--failures are caused by the local launcher only")
    if evaluation and (failures or launcher is not Where.LOCAL):
        raise InputError(
            "--evaluation is struck on this machine: give neither --failures nor --launcher"
        )
    if cluster is not None and launcher is not Where.SLURM:
        raise InputError("--cluster needs --launcher slurm")
    with exit_on_sigterm():  # So that the trial under way is ended too: its job would train on.
        if evaluation:
            report = _evaluation(runs, seed, trial, folder, json)
        elif failures:
            report = _failures(classes, seed, folder, json)
        else:
            with _site(launcher, cluster) as site:
                report = _strikes(runs, seed, trial, folder, json, site)
    if report["failed"]:
        raise typer.Exit(EXIT_RUN_FAILED)


@contextmanager
def _site(launcher: Where, folder: Path | None) -> Iterator[Site]:
    """Where the trials run, for as long as they do."""
    if launcher is Where.LOCAL:
        from flows.chaos.local_site import LocalSite

        yield LocalSite()
        return
    from flows.chaos.slurm_site import SlurmSite
    from infra.slurm.cluster import LocalCluster
    from infra.slurm.packages import missing_packages
    from infra.slurm.temporary import temporary_cluster, write_token

    if missing := missing_packages():
        raise InputError(f"not installed: {' '.join(missing)}; `make slurm-packages` installs them")
    if folder is None:
        with temporary_cluster() as (own, token_file):
            yield SlurmSite(own, token_file)
        return
    cluster = LocalCluster.in_folder(resolved(folder), running=True)
    if (count := len(cluster.settings.all_node_names)) < _MIN_NODES:
        raise InputError(
            f"--cluster {folder} has {count} nodes: trials lose one, and need {_MIN_NODES} at least"
        )
    cluster.repair(timeout_s=_READY_S)
    yield SlurmSite(cluster, write_token(cluster))


def _strikes(
    runs: int, seed: int, trial: int | None, folder: Path | None, json: bool, site: Site
) -> dict[str, Any]:
    from flows.chaos.run import run_chaos
    from flows.show.chaos import print_chaos

    report = run_chaos(trials=runs, seed=seed, only=trial, folder=folder, say=_say, site=site)
    print_chaos(report, json=json)
    return report


def _evaluation(
    runs: int, seed: int, trial: int | None, folder: Path | None, json: bool
) -> dict[str, Any]:
    from flows.chaos.evaluation import run_evaluation_chaos
    from flows.show.chaos_evaluation import print_evaluation_chaos

    only = None if trial is None else [trial]
    report = run_evaluation_chaos(trials=runs, seed=seed, only=only, folder=folder, say=_say)
    print_evaluation_chaos(report, json=json)
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
