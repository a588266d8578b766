"""What `overland bench ...` prints: one JSON object, or a line a figure for people."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from typing import Any

import typer


def print_bench(title: str, figures: Mapping[str, Any], *, json: bool) -> None:
    """Print a benchmark's figures; names carry their units."""
    if json:
        typer.echo(json_module.dumps(figures))
        return
    typer.echo(title)
    for name, value in figures.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        typer.echo(f"  {name:18} {shown}")
