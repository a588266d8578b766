"""Options that several commands of `overland` have."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="End with one JSON object on standard output.")]
