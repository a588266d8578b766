"""`overland plan ...`: figures to decide with before a job is started. Nothing is run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from configs.errors import InputError
from configs.goodput import Assumptions
from configs.units import (
    parse_bandwidth_bytes_per_s,
    parse_count,
    parse_duration_s,
    parse_size_bytes,
)

BYTES_PER_PARAMETER = 14
"""Of a checkpoint in mixed precision: bf16 weights (2), fp32 weights (4), Adam's two moments (8)."""
DEFAULT_NODE_MTBF = "239d"
"""400 nodes x 349 days / 584 faults: the published InfiniteHBD trace."""

plan = typer.Typer(help="Plan a run: figures to decide with.", no_args_is_help=True)


@plan.callback()
def _plan() -> None:
    """A group, also while it has one command."""


@plan.command("goodput")
def plan_goodput_command(
    gpus: Annotated[str, typer.Option(metavar="N", help="GPUs of the job, like 1000 or 10k.")],
    state_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="One checkpoint of the whole job, like 1.7TB. Or give --parameters.",
        ),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            metavar="N", help=f"Model size, like 123B: {BYTES_PER_PARAMETER} bytes of state each."
        ),
    ] = None,
    mtbf: Annotated[
        str | None,
        typer.Option(
            "--mtbf",
            "--node-mtbf",
            metavar="TIME",
            help="Mean time between failures of ONE NODE, like 239d or 5000h."
            f" [default: the trace's, else {DEFAULT_NODE_MTBF}]",
        ),
    ] = None,
    job_mtbf: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Instead: mean time between failures of the WHOLE JOB, like 14.3h."
        ),
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(metavar="N", help="GPUs that fail together.")] = 8,
    write_bandwidth: Annotated[
        str, typer.Option(metavar="SPEED", help="With which the whole job writes to storage.")
    ] = "20GB/s",
    blocked_s: Annotated[
        float,
        typer.Option(
            metavar="S", help="Seconds of training that one save costs: blocked, and slowed."
        ),
    ] = 0.5,
    detect_s: Annotated[
        float,
        typer.Option(
            metavar="S", help="Seconds from a failure until it is noticed and the job ended."
        ),
    ] = 60.0,
    restart_s: Annotated[
        float,
        typer.Option(
            metavar="S", help="Seconds from there to the next step: scheduling, start-up, load."
        ),
    ] = 300.0,
    restart_from_memory_fraction: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Share of failures that leave the snapshots in memory: crashed processes.",
        ),
    ] = 0.0,
    memory_restart_s: Annotated[
        float, typer.Option(metavar="S", help="Like --restart-s, after such a failure.")
    ] = 120.0,
    memory_interval_s: Annotated[
        float | None,
        typer.Option(metavar="S", help="Seconds between snapshots in memory. [default: the best]"),
    ] = None,
    interval_s: Annotated[
        float | None,
        typer.Option(metavar="S", help="Also say what this interval (seconds of training) brings."),
    ] = None,
    step_time_s: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Seconds of one optimizer step: intervals become whole steps."
        ),
    ] = None,
    fault_trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Check against real faults too: InfiniteHBD's fault_trace.json."
        ),
    ] = None,
    trace_nodes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Nodes that the trace was recorded on. [default: 400]"),
    ] = None,
    spare_nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Nodes that replace faulty ones, on the trace. [default: 10 %]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the simulations.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The best checkpoint interval and the goodput to expect, checked by simulation.

    Saves run in the background: training waits --blocked-s for one, and it is of use once it is
    written. Durations need a unit (s, min, h, d).
    """
    from flows.show.plan_goodput import print_goodput_plan
    from flows.show.report import report_console
    from tasks.recover.goodput_plan import INFINITEHBD_NODES, plan_goodput, trace_mtbf_s

    if fault_trace is None:
        _refuse({"--trace-nodes": trace_nodes, "--spare-nodes": spare_nodes}, "--fault-trace")
    if not restart_from_memory_fraction:
        _refuse({"--memory-interval-s": memory_interval_s}, "--restart-from-memory-fraction")
    trace_nodes = INFINITEHBD_NODES if trace_nodes is None else trace_nodes
    node_count = _node_count(gpus, gpus_per_node)
    if job_mtbf is not None:
        if mtbf is not None:
            raise InputError("give --mtbf (of one node) or --job-mtbf (of the whole job), not both")
        node_mtbf_s = _given("--job-mtbf", parse_duration_s, job_mtbf) * node_count
    elif mtbf is None and fault_trace is not None:
        node_mtbf_s = trace_mtbf_s(fault_trace, trace_nodes)
    else:
        node_mtbf_s = _given("--mtbf", parse_duration_s, mtbf or DEFAULT_NODE_MTBF)
    assumptions = Assumptions(
        gpus=_whole(gpus),
        gpus_per_node=gpus_per_node,
        node_mtbf_s=node_mtbf_s,
        state_size_bytes=_state_size_bytes(state_size, parameters),
        write_bandwidth_bytes_per_s=_given(
            "--write-bandwidth", parse_bandwidth_bytes_per_s, write_bandwidth
        ),
        blocked_s=blocked_s,
        detect_s=detect_s,
        restart_s=restart_s,
        memory_fraction=restart_from_memory_fraction,
        memory_restart_s=memory_restart_s,
        memory_interval_s=memory_interval_s,
        step_time_s=step_time_s,
    )
    found = plan_goodput(
        assumptions,
        given_interval_s=interval_s,
        trace_path=fault_trace,
        trace_nodes=trace_nodes,
        spare_nodes=spare_nodes,
        seed=seed,
    )
    if json:
        typer.echo(found.model_dump_json())
    else:
        print_goodput_plan(found, report_console(sys.stdout))


def _refuse(options: Mapping[str, float | None], needed: str) -> None:
    """What would be ignored is refused."""
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option} has no use without {needed}: give both, or leave it out")


def _given(option: str, parse: Callable[[str], float], text: str) -> float:
    """The option's value; InputError names the option."""
    try:
        return parse(text)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error


def _whole(gpus: str) -> int:
    count = _given("--gpus", parse_count, gpus)
    if count != int(count):
        raise InputError(f"--gpus must be a whole number; it is {gpus}")
    return int(count)


def _node_count(gpus: str, gpus_per_node: int) -> int:
    if gpus_per_node <= 0:
        raise InputError(f"--gpus-per-node must be more than zero; it is {gpus_per_node}")
    return -(-_whole(gpus) // gpus_per_node)


def _state_size_bytes(state_size: str | None, parameters: str | None) -> float:
    if (state_size is None) == (parameters is None):
        raise InputError(
            "say what one checkpoint of the whole job holds: --state-size, like 1.7TB, or --parameters,"
            " like 123B" + ("; not both" if state_size else "")
        )
    if state_size is not None:
        return _given("--state-size", parse_size_bytes, state_size)
    return _given("--parameters", parse_count, parameters or "") * BYTES_PER_PARAMETER
