"""`overland simulate ...`: how a part of Overland would do where it cannot be tried. Nothing is run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli_options import Json

simulate = typer.Typer(help="Simulate what cannot be tried.", no_args_is_help=True)

_Share = Annotated[float | None, typer.Option(min=0, max=1, metavar="SHARE")]


@simulate.callback()
def _simulate() -> None:
    """A group of commands."""


@simulate.command("nodecheck")
def simulate_nodecheck(
    nodes: Annotated[int, typer.Option(metavar="N", help="Nodes of the cluster.")] = 10_000,
    dead: _Share = None,
    broken: _Share = None,
    intermittent: _Share = None,
    intermittent_rate: Annotated[
        float, typer.Option(min=0, max=1, help="How often an intermittent node fails in a trial.")
    ] = 0.3,
    slow: _Share = None,
    link: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="P", help="That the way between two nodes is broken."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Of each probe, in our test.")] = 3,
    seeds: Annotated[int, typer.Option(min=1, help="Clusters that are drawn.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="The first one's.")] = 0,
    json: Json = False,
) -> None:
    """What a node check finds on a large cluster, its false alarms and its time.

    The two-round test of the Acme paper beside ours, over a set of fault rates, or over the one that
    --dead, --broken, --intermittent, --slow and --link describe.
    """
    from configs.nodecheck import FaultMix
    from flows.show.nodecheck import print_simulation
    from flows.show.report import report_console
    from tasks.recover.nodecheck_simulation import STANDARD_MIXES, simulate_checks

    given = {
        "dead": dead,
        "broken": broken,
        "intermittent": intermittent,
        "slow": slow,
        "link": link,
    }
    shares = {name: share for name, share in given.items() if share is not None}
    mixes = STANDARD_MIXES
    if shares:
        mixes = (FaultMix.model_validate(shares | {"intermittent_rate": intermittent_rate}),)
    checks = simulate_checks(nodes, mixes, trials=trials, seeds=seeds, first_seed=seed)
    if json:
        import json as json_module

        results = [check.model_dump(mode="json") for check in checks]
        typer.echo(json_module.dumps({"nodes": nodes, "checks": results}))
    else:
        print_simulation(checks, report_console(sys.stdout))


@simulate.command("evaluation")
def simulate_evaluation_command(
    nodes: Annotated[int, typer.Option(metavar="N", help="Nodes of 8 GPUs and 64 CPU cores.")],
    tasks: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Public benchmarks to run: the first N of 63. [default: all]"
        ),
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV of your own tasks instead, at most 5,000: task,requests,infer_s,metric_s (seconds"
            " of the whole task on one GPU, and on one CPU core).",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """One evaluation of a 7B model: our plan beside a trial a task and OpenCompass's partitioners.

    Each node reads 25 Gbit/s from storage, shared by its loads; ours stages the model once a node.
    """
    from flows.show.report import report_console
    from flows.show.simulate_evaluation import print_evaluation_simulation
    from tasks.evaluate.simulate_evaluation import simulate_evaluation

    found = simulate_evaluation(nodes=nodes, tasks=tasks, workload=workload)
    if json:
        typer.echo(found.model_dump_json())
    else:
        print_evaluation_simulation(found, report_console(sys.stdout))
