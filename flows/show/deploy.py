"""What `overland deploy` prints for people: what changed on the server, and what is left to do."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flows.deploy.apply import Change
from flows.show.layout import print_tight, two_columns
from flows.show.words import plural

_STYLES = {"created": "green", "changed": "yellow", "removed": "red", "unchanged": "dim"}
_WOULD_BE = {
    "created": "would be created",
    "changed": "would be changed",
    "removed": "would be removed",
    "unchanged": "unchanged",
}


def print_deploy(
    server: str,
    changes: Sequence[Change],
    pools_without_worker: Sequence[str],
    console: Console,
    *,
    dry_run: bool,
) -> None:
    """A line for each thing on the server, then the sum of it."""
    console.print(Text(server, "bold"))
    table = two_columns()
    for change in changes:
        verb = _WOULD_BE[change.verb] if dry_run else change.verb
        text = f"{change.what} ({'; '.join(change.details)})" if change.details else change.what
        table.add_row(Text(verb, _STYLES[change.verb]), Text(text))
    print_tight(table, console)
    console.print()
    changed = sum(change.verb != "unchanged" for change in changes)
    if dry_run:
        console.print(f"dry run: {plural(changed, 'thing')} would change, nothing was done")
    elif changed:
        console.print(f"{plural(changed, 'thing')} changed")
    else:
        console.print("nothing to change: the server is as it should be")
    for pool in pools_without_worker:
        console.print(
            Text(
                f"no worker is online for {pool}: `prefect worker start --pool {pool}` on the login node",
                "yellow",
            ),
            soft_wrap=True,
        )
