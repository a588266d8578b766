"""What `overland bench ...` prints: one JSON object, or lines and tables for people."""

from __future__ import annotations

import json as json_module
import math
import sys
from collections.abc import Mapping
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from flows.show.report import report_console


def print_bench(title: str, figures: Mapping[str, Any], *, json: bool) -> None:
    """Print a benchmark's figures; names carry their units."""
    if json:
        typer.echo(json_module.dumps(figures))
        return
    typer.echo(title)
    for name, value in figures.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        typer.echo(f"  {name:18} {shown}")


def print_checkpoint_bench(figures: Mapping[str, Any], *, json: bool) -> None:
    """Print what a checkpoint costs training, a row for each way to save."""
    if json:
        typer.echo(json_module.dumps(figures))
        return
    console = report_console(sys.stdout)
    console.print(
        f"{figures['model_parameters'] / 1e6:.1f} M parameters, "
        f"{figures['state_bytes'] / 2**30:.2f} GiB of state, a step of {figures['step_s']:.3g} s on "
        f"{figures['device']}; medians of {figures['saves']} saves, the first one apart",
        soft_wrap=True,
    )
    table = Table()
    table.add_column("save", no_wrap=True)
    for heading in ("blocked", "first", "slowdown", "lost", "less by"):
        table.add_column(heading, justify="right")
    for row in figures["results"]:
        blocked, slowdown = row["blocked_s"], row["slowdown_s"]
        seconds = (blocked, row["first_blocked_s"], slowdown, blocked + slowdown)
        table.add_row(
            row["name"], *(f"{s:.4f} s" for s in seconds), f"{row['ratio_vs_sync']:.1f} x"
        )
    console.print(table)
    console.print(
        f"synchronous: {figures['synchronous_by']}; restart from memory "
        f"{figures['restart_from_memory_s']:.3f} s, from storage "
        f"{figures['restart_from_storage_s']:.3f} s",
        soft_wrap=True,
    )


def print_diagnosis_bench(figures: Mapping[str, Any], *, json: bool) -> None:
    """Print how good diagnoses are, a row for each that makes them and for each set of cases."""
    if json:
        typer.echo(json_module.dumps(_without_nan(figures), allow_nan=False))
        return
    console = report_console(sys.stdout)
    console.print(f"{figures['cases']} cases of {figures['classes']} classes")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))  # eighty columns are enough
    table.add_column("", overflow="fold")
    names = ("accuracy", "macro_f1", "root_line", "node", "action", "wrong_restarts")
    for heading in ("cases", "class", "F1", "line", "node", "action", "harm", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in (*figures["results"], *figures["sets"]):
        shares = ("-" if math.isnan(row[name]) else f"{row[name]:.3f}" for name in names)
        table.add_row(row["name"], str(row["cases"]), *shares, f"{row['ms_per_case']:.1f}")
        if row is figures["results"][-1]:
            table.add_section()
    console.print(table)
    console.print(
        "class, F1 (macro), line (within 2), node, action: shares that are right; harm: restarts of those "
        "that need none; ms: a case",
        soft_wrap=True,
    )
    for name in figures["missing"]:
        console.print(f"{name} is not installed: pip install 'overland[bench]'")


def _without_nan(value: Any) -> Any:
    """For JSON, which has no such number: a share of no cases is null."""
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


_EVALUATIONS = {
    "ours": "ours",
    "per_task": "lm_eval once a task",
    "opencompass_size": "OpenCompass size",
    "opencompass_num_worker": "OpenCompass workers",
}


def print_evaluation_bench(figures: Mapping[str, Any], *, json: bool) -> None:
    """Print how long one evaluation took in each way, beside the bound and the simulation."""
    if json:
        typer.echo(json_module.dumps(figures))
        return
    console = report_console(sys.stdout)
    console.print(
        f"{len(figures['tasks'])} tasks on {figures['workers']} workers; a model of "
        f"{figures['model_bytes'] / 2**20:.0f} MiB on storage of "
        f"{figures['storage_mib_per_s']:.4g} MiB/s",
        soft_wrap=True,
    )
    table = Table()
    table.add_column("", no_wrap=True)
    for heading in ("time", "over bound", "ours faster", "simulated", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, label in _EVALUATIONS.items():
        time_s = figures[f"{name}_s"]
        row = [f"{time_s:.1f} s", f"{100 * (time_s / figures['lower_bound_s'] - 1):.1f} %"]
        row.append(f"{figures['speedup'][name]:.2f} x" if name in figures["speedup"] else "")
        if "simulated_s" in figures:
            error = 100 * figures["simulation_error"][name]
            row += [f"{figures['simulated_s'][name]:.1f} s", f"{error:+.1f} %"]
        table.add_row(label, *row)
    console.print(table)
    console.print(f"lower bound: {figures['lower_bound_s']:.1f} s; all scores are the same")
    for name, choice in figures["choices"].items():
        console.print(f"{_EVALUATIONS[name]}: {choice}", style="dim")
