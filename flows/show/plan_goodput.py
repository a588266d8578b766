"""What `overland plan goodput` prints for people: the interval to set, and where the time will go."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from configs.goodput import GoodputPlan, Shares
from flows.show import words
from flows.show.layout import print_facts, print_tight, section

_PARTS = (
    ("productive", "steps that count (goodput)"),
    ("recomputed", "steps computed again"),
    ("checkpoint", "saving checkpoints"),
    ("detection", "noticing failures"),
    ("waiting", "waiting for nodes"),
    ("restart", "restarting"),
)


def print_goodput_plan(plan: GoodputPlan, console: Console) -> None:
    """Print a plan: what it rests on, the best interval, the time's parts, the classical intervals."""
    _print_assumptions(plan, console)
    _print_interval(plan, console)
    _print_parts(plan, console)
    _print_references(plan, console)
    if plan.notes:
        section("To know", console)
    for note in plan.notes:
        print_tight(Text(note), console)


def _print_assumptions(plan: GoodputPlan, console: Console) -> None:
    given = plan.assumptions
    node_days = f"{given.node_mtbf_s / 86_400:.4g} days"
    bandwidth = words.size(round(given.write_bandwidth_bytes_per_s))
    size = words.size(round(given.state_size_bytes))
    section("Job", console)
    facts = [
        ("size", f"{given.gpus:,} GPUs on {words.plural(plan.nodes, 'node')}"),
        ("failures", f"one in {_time(plan.mtbf_s)}; of each node one in {node_days}"),
        ("checkpoint", f"{size} at {bandwidth}/s: written in {_time(plan.write_s)}"),
        ("a save costs", f"{given.blocked_s:g} s of training"),
        (
            "a failure costs",
            f"{_time(given.detect_s)} to notice, {_time(given.restart_s)} to restart",
        ),
    ]
    if given.memory_fraction:
        share, again = f"{100 * given.memory_fraction:g} %", _time(given.memory_restart_s)
        facts.append(("from memory", f"{share} of the failures, restarted in {again}"))
    print_facts(facts, console)


def _print_interval(plan: GoodputPlan, console: Console) -> None:
    low_s, high_s = plan.good_interval_s
    section("Best interval", console)
    facts = [
        ("checkpoint", _interval(plan.best_interval_s, plan.best_interval_steps, "interval_steps"))
    ]
    if plan.memory_interval_s is not None:
        memory = _interval(
            plan.memory_interval_s, plan.memory_interval_steps, "memory_interval_steps"
        )
        facts.append(("in memory", memory))
    facts.append(("good enough", f"{_time(low_s)} to {_time(high_s)}: loses at most 0.1 points"))
    print_facts(facts, console)


def _print_parts(plan: GoodputPlan, console: Console) -> None:
    simulated, trace = plan.simulated, plan.trace
    columns: list[tuple[str, Shares]] = [("model", plan.parts), ("simulated", simulated.shares)]
    ranges = ["", f"{100 * simulated.low:.2f}-{100 * simulated.high:.2f} %"]
    if trace is not None:
        columns.append(("real faults", trace.shares))
        ranges.append(f"{100 * trace.low:.1f}-{100 * trace.high:.1f} %")
    section("Where the time goes", console)
    table = _table("", *(name for name, _ in columns))
    for name, label in _PARTS:
        values = [getattr(shares, name) for _, shares in columns]
        if any(values):
            style = "bold" if name == "productive" else ""
            table.add_row(label, *(f"{100 * value:.2f} %" for value in values), style=style)
    table.add_row("goodput lies between", *ranges, style="dim")
    print_tight(table, console)
    failures = f"{words.plural(simulated.failures, 'independent failure')} in "
    sources = [
        failures + words.plural(simulated.repetitions, "run") + " (95 % interval of the mean)"
    ]
    if trace is not None:
        draws = words.plural(trace.draws, "draw")
        sources.append(
            f"real faults of {trace.days:.0f} days, {draws} of nodes, {trace.spare_nodes} spare"
            f" (5th to 95th percentile)"
        )
    for source in sources:
        print_tight(Text(source, "dim"), console)


def _print_references(plan: GoodputPlan, console: Console) -> None:
    section("Beside it", console)
    table = _table("", "interval", "goodput")
    table.add_row(
        "best, saved in the background", _time(plan.best_interval_s), _percent(plan.goodput)
    )
    if plan.given is not None:
        label = "as asked for, in the background"
        table.add_row(label, _time(plan.given.interval_s), _percent(plan.given.goodput))
    for reference in plan.references:
        label = f"{reference.name}, training waits"
        table.add_row(label, _time(reference.interval_s), _percent(reference.goodput))
    print_tight(table, console)


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _interval(seconds: float, steps: int | None, key: str) -> str:
    if steps is None:
        return f"{_time(seconds)} (with --step-time-s: in steps)"
    return f"{_time(seconds)} = {words.plural(steps, 'step')}: checkpoint.{key}={steps}"


def _time(seconds: float) -> str:
    return words.duration(seconds)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
