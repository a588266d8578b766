"""What `overland simulate evaluation` prints for people: each policy's time beside the bound."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from configs.evaluation_simulation import EvaluationSimulation
from flows.show import words
from flows.show.layout import print_facts, print_tight, section

_NAMES = {
    "ours": "ours",
    "per_task": "a trial each",
    "opencompass_size": "OpenCompass size",
    "opencompass_num_worker": "OpenCompass workers",
}
_BOUND_NAMES = {
    "load_s": "loading the model",
    "gpu_s": "work over all GPUs, and the metric that must follow it",
    "chain_s": "the longest task, alone",
    "cpu_s": "metrics over all cores",
}


def print_evaluation_simulation(found: EvaluationSimulation, console: Console) -> None:
    """Print the work, the bound and what it comes from, and a row for each policy."""
    setting = found.setting
    section("Evaluation", console)
    machines = (
        f"{words.plural(setting.nodes, 'node')}: {setting.gpus:,} GPUs, {setting.cpu_cores:,} cores"
    )
    parts = found.bound.model_dump()
    largest = max(parts, key=lambda name: parts[name])
    print_facts(
        [
            ("tasks", f"{found.tasks:,}, {words.plural(found.requests, 'request')}"),
            (
                "work",
                f"{words.duration(found.infer_s)} on one GPU, {words.duration(found.metric_s)} of"
                f" metrics on one core, the longest {words.duration(found.longest_metric_s)}",
            ),
            ("machines", machines),
            (
                "loading",
                f"{setting.stage_s:.1f} s from storage if alone on its node, {setting.load_s:.1f} s"
                " from the node's memory",
            ),
            (
                "lower bound",
                f"{words.duration(found.lower_bound_s)}: {_BOUND_NAMES[largest]}",
            ),
        ],
        console,
    )
    section("Time until the last score", console)
    print_tight(_table(found), console)
    for name in _NAMES:
        if name != "ours":
            print_tight(
                Text(f"{_NAMES[name]}, at its best: {found.policies[name].choice}", "dim"), console
            )


def _table(found: EvaluationSimulation) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    for name in ("time", "over bound", "ours faster", "loads", "GPUs busy"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, label in _NAMES.items():
        result = found.policies[name]
        over = 100 * (result.makespan_s / found.lower_bound_s - 1) if found.lower_bound_s else 0.0
        faster = f"{found.speedup[name]:.2f} x" if name in found.speedup else ""
        table.add_row(
            label,
            words.duration(result.makespan_s),
            f"{round(over, 1) + 0.0:.1f} %",  # no "-0.0"
            faster,
            f"{result.loads:,}",
            f"{100 * result.gpu_busy_share:.0f} %",
            style="bold" if name == "ours" else "",
        )
    return table
