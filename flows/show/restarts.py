"""The restarts of a run in its report: what ended each attempt, and what was done about it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from flows.show import words
from flows.show.layout import print_tight, section, two_columns
from flows.show.summary import AttemptSummary

_MAX_RESTARTS = 10


def print_restarts(attempts: Sequence[AttemptSummary], console: Console) -> None:
    """Print the attempts that ended early: why, and what was done about it."""
    ended = [
        (attempt, attempts[i + 1] if i + 1 < len(attempts) else None)
        for i, attempt in enumerate(attempts)
        if attempt.outcome in ("failed", "cancelled", "stopped")
    ]
    if not ended:
        return
    section("restarts", console)
    if len(ended) > _MAX_RESTARTS:
        console.print(Text(f"{len(ended) - _MAX_RESTARTS} earlier ones in attempts/", "dim"))
    table = two_columns()
    for attempt, following in ended[-_MAX_RESTARTS:]:
        table.add_row(Text(f"attempt {attempt.number}"), _cause(attempt))
        if attempt.root_cause_text:
            table.add_row("", _quote(attempt))
        table.add_row("", Text(_consequence(attempt, following)))
    print_tight(table, console)


def _cause(attempt: AttemptSummary) -> Text:
    text = Text(attempt.verdict or attempt.outcome or "", style="bold yellow")
    plain = f" ({attempt.category})" if attempt.category else ""
    if attempt.rank is not None:
        plain += f", rank {attempt.rank}"
    if attempt.node:
        plain += f" on {words.clean(attempt.node, 60)}"
    if attempt.last_step is not None:
        plain += f", after step {attempt.last_step:,}"
    if attempt.how:
        plain += f": {attempt.how}"
    return Text.assemble(text, plain)


def _quote(attempt: AttemptSummary) -> Text:
    place = attempt.root_cause_file or ""
    if attempt.root_cause_line is not None:
        place += f":{attempt.root_cause_line}"
    quote = f'"{words.quote(attempt.root_cause_text, 240)}"'
    return Text.assemble((f"{place}  " if place else "", "dim"), quote)


def _consequence(attempt: AttemptSummary, following: AttemptSummary | None) -> str:
    reason = words.clean(attempt.reason).rstrip(".")
    if attempt.stop or (following is None and attempt.action is None):
        action = "stopped"
    else:
        action = words.ACTION_WORDS[attempt.action] if attempt.action else "started again"
    text = f"{action}: {reason}" if reason else action
    if following is None or following.start_step is None:
        return text
    back = f"went back to step {following.start_step:,}"
    if following.start_step == attempt.last_step:
        back = f"went on from step {following.start_step:,}"
    if following.loaded_from == "memory":
        back += " in the node's memory"
    again = (attempt.last_step or 0) - following.start_step
    if again > 0:
        back += f" ({words.plural(again, 'step')} computed again)"
    return f"{text}; {back}"
