"""Sections, aligned facts and paths: the pieces that reports are made of."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text


def section(title: str, console: Console, more: str = "", style: str = "bold") -> None:
    """A blank line and a heading, with `more` beside it."""
    console.print()
    console.print(Text.assemble((title, style), f"  {more}" if more else ""))


def print_facts(facts: Sequence[tuple[str, str]], console: Console) -> None:
    """Labels and values, long values wrapped beside their label."""
    table = two_columns()
    for label, value in facts:
        table.add_row(Text(label, "dim"), Text(value))
    print_tight(table, console)


def print_places(places: Sequence[tuple[str, str]], console: Console) -> None:
    """One line each whatever the width, so that a path can be copied."""
    width = max(len(label) for label, _ in places) + 2
    for label, place in places:
        console.print(Text.assemble((label.ljust(width), "dim"), place), soft_wrap=True)


def two_columns() -> Table:
    """A table without lines: a label, and text that wraps."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def print_tight(renderable: RenderableType, console: Console) -> None:
    """Print without the spaces that fill each line up."""
    for segments in console.render_lines(renderable, pad=False):
        line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()
        console.print(line, soft_wrap=True)
