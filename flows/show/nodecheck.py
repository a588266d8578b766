"""What `overland nodecheck` and `overland simulate nodecheck` print for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from configs.nodecheck import NodeCheckReport, NodeResult, SimulatedCheck
from flows.show import words
from flows.show.layout import print_tight, section

_STYLES = {"good": "green", "faulty": "bold red", "down": "bold red"}
_SIMULATION_COLUMNS = {
    "test": 8, "found": 20, "links": 10, "false": 5, "undecided": 9, "rounds": 6, "time": 6,
}  # fmt: skip
_MOST_GOOD = 32
"""More good nodes than this are only counted."""


def print_nodecheck(report: NodeCheckReport, console: Console) -> None:
    """Each node's result, the bad ones first."""
    rounds = words.plural(report.rounds, "round")
    took = words.duration(report.ended_at - report.started_at)
    section("Node check", console, f"{words.plural(len(report.nodes), 'node')}, {rounds}, {took}")
    bad = [result for result in report.nodes if result.state != "good"]
    good = [result for result in report.nodes if result.state == "good"]
    print_tight(_table_of(bad + (good if len(good) <= _MOST_GOOD else [])), console)
    if len(good) > _MOST_GOOD:
        print_tight(Text(f"{words.plural(len(good), 'node')} good", "green"), console)
    for first, second in report.links:
        text = f"{first} and {second} failed together, though both passed with others"
        print_tight(Text(text, "yellow"), console)
    for node in report.drained:
        print_tight(Text(f"{node} was taken out of service"), console)
    for error in report.drain_errors:
        print_tight(Text(f"not taken out of service: {error}", "red"), console)
    if not report.complete:
        print_tight(Text(f"the check did not end: {report.reason}", "red"), console)


def _table_of(results: Sequence[NodeResult]) -> Table:
    table = _table("node", "state", "matrix product", "all-gather", "")
    for result in results:
        times = (_milliseconds(result.matmul_s), _milliseconds(result.gather_s))
        state = Text(result.state, _STYLES.get(result.state, "yellow"))
        table.add_row(result.node, state, *times, words.clean(result.reason))
    return table


def print_simulation(checks: Sequence[SimulatedCheck], console: Console) -> None:
    """A line for each test and mix of faults."""
    first = checks[0]
    more = f"{first.nodes:,} nodes, {words.plural(first.seeds, 'seed')}"
    section("Simulated node checks", console, more)
    table = _simulation_table(show_header=True)
    for check in checks:
        if check.test == "paper" and table.row_count:
            print_tight(table, console)
            table = _simulation_table()
        if check.test == "paper":
            print_tight(Text(check.mix.name, "bold"), console)
        found = "\n".join(f"{kind} {100 * s:.1f} %" for kind, s in check.detected.items())
        links = f"{check.links_named} of {check.links_tried}" if check.links_tried else "-"
        table.add_row(
            check.test,
            found or "-",
            links,
            f"{check.false_alarms_per_1000:.2f}",
            f"{check.undecided_per_1000:.2f}",
            str(check.rounds),
            words.duration(check.time_s),
        )
    print_tight(table, console)
    print_tight(
        Text(
            "false: healthy nodes that were called faulty or slow. It and undecided: of 1,000 nodes",
            "dim",
        ),
        console,
    )


def _milliseconds(time_s: float | None) -> str:
    return "-" if time_s is None else f"{1000 * time_s:.3g} ms"


def _simulation_table(*, show_header: bool = False) -> Table:
    """Of one mix of faults. Columns are as wide as in the others, and all fit into 80 characters."""
    table = Table(
        box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=show_header, header_style="dim"
    )
    for name, width in _SIMULATION_COLUMNS.items():
        table.add_column(name, min_width=width, no_wrap=True)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, no_wrap=bool(name))
    return table
