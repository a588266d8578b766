"""Which metric stands for a task, which direction is better, and the table checkpoints x scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.show import words
from flows.show.layout import print_tight

_MAIN_METRICS = (
    "acc_norm",
    "acc",
    "exact_match",
    "f1",
    "bits_per_byte",
    "word_perplexity",
    "byte_perplexity",
    "perplexity",
)
_LOWER_IS_BETTER = ("perplexity", "bits_per_byte", "loss", "brier", "ter", "wer", "cer", "mse")
_NAME_WIDTH = 13
_MAX_ROWS = 16
_MAX_NOTES = 5


class ScoreLike(Protocol):
    """A value of one task's metric, in an evaluation or in a summary."""

    @property
    def task(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def value(self) -> float | None: ...
    @property
    def stderr(self) -> float | None: ...


@dataclass
class ScoreRow:
    """One checkpoint's line in the table."""

    step: int
    size_bytes: int | None
    note: str
    """Why there are no scores (yet)."""
    scores: Sequence[ScoreLike]


@dataclass
class _Column:
    task: str
    metric: str
    cells: dict[int, ScoreLike] = field(default_factory=dict)
    """By step."""

    @property
    def values(self) -> list[float]:
        return [c.value for c in self.cells.values() if c.value is not None]

    @property
    def best(self) -> float | None:
        """The best value; None when there is nothing to compare."""
        values = [value for value in self.values if math.isfinite(value)]
        if len(set(values)) < 2:
            return None
        return min(values) if lower_is_better(self.metric) else max(values)

    @property
    def header(self) -> str:
        return "\n".join([*_fold(self.task), *_fold(metric_name(self.metric))])

    def cell(self, step: int, *, stderr: bool) -> str:
        score = self.cells.get(step)
        if score is None or score.value is None:
            return "- "
        text = _number(score.value, self.values)
        if stderr and score.stderr is not None:
            text += f" ({_number(score.stderr, self.values)})"
        return text + ("*" if score.value == self.best else " ")


def metric_name(metric: str) -> str:
    """lm-eval's name without the filter that does nothing: `acc,none` is `acc`."""
    return metric.removesuffix(",none")


def lower_is_better(metric: str) -> bool:
    """Whether a smaller value of this metric is the better one."""
    name = metric.split(",")[0]
    parts = {name, *name.split("_")}
    return any(word == name or word in parts for word in _LOWER_IS_BETTER)


def main_scores(scores: Iterable[ScoreLike]) -> list[ScoreLike]:
    """One score a task, in the tasks' order: its best known metric, or else its first."""
    by_task: dict[str, list[ScoreLike]] = {}
    for score in scores:
        by_task.setdefault(score.task, []).append(score)
    return [min(group, key=_rank) for group in by_task.values()]


def one_line(scores: Iterable[ScoreLike], limit: int = 4) -> str:
    """`heldout_cloze acc 0.3120, heldout_copy exact_match 0.0500`."""
    chosen = main_scores(scores)
    parts = [
        f"{s.task} {metric_name(s.metric)} {'-' if s.value is None else _number(s.value, [s.value])}"
        for s in chosen[:limit]
    ]
    if len(chosen) > limit:
        parts.append(f"and {words.plural(len(chosen) - limit, 'more task')}")
    return ", ".join(parts)


def print_scores(rows: Sequence[ScoreRow], console: Console, *, rest_in: str) -> None:
    """Print the table, as several below each other where one does not fit the width.

    `rest_in` names the files that hold the checkpoints it has no room for.
    """
    columns = _columns(rows)
    shown, hidden = _rows_to_show(rows, columns)
    wide = _table(shown, columns, stderr=True)
    fits = _width(wide, console) <= console.width
    for number, table in enumerate([wide] if fits else _narrow_tables(shown, columns, console)):
        if number:
            console.print()
        print_tight(table, console)
    notes = []
    if any(column.best is not None for column in columns):
        notes.append("* best of its column")
    if fits and any(cell.stderr is not None for c in columns for cell in c.cells.values()):
        notes.append("(standard error)")
    if notes:
        console.print(Text("   ".join(notes), style="dim"))
    if hidden:
        console.print(Text(f"{words.plural(hidden, 'more checkpoint')} in {rest_in}", "dim"))
    for row in [row for row in rows if row.note][-_MAX_NOTES:]:
        console.print(Text(f"step {row.step:,}: evaluation {row.note}", style="yellow"))


def _rank(score: ScoreLike) -> int:
    name = score.metric.split(",")[0]
    return _MAIN_METRICS.index(name) if name in _MAIN_METRICS else len(_MAIN_METRICS)


def _columns(rows: Sequence[ScoreRow]) -> list[_Column]:
    columns: dict[tuple[str, str], _Column] = {}
    for row in rows:
        for score in main_scores(row.scores):
            key = (score.task, score.metric)
            columns.setdefault(key, _Column(*key)).cells[row.step] = score
    return list(columns.values())


def _rows_to_show(
    rows: Sequence[ScoreRow], columns: Sequence[_Column]
) -> tuple[list[ScoreRow], int]:
    """The newest rows with scores, the newest without where there is room, the very newest, and those
    with a best value; how many are left out."""
    best = {step for c in columns for step, s in c.cells.items() if s.value == c.best is not None}
    preferred = sorted(rows, key=lambda row: (bool(row.scores), row.step))[-_MAX_ROWS:]
    chosen = best | {row.step for row in (*preferred, *rows[-1:])}
    shown = [row for row in rows if row.step in chosen]
    return shown, len(rows) - len(shown)


def _narrow_tables(
    rows: Sequence[ScoreRow], columns: Sequence[_Column], console: Console
) -> list[Table]:
    groups: list[list[_Column]] = [[]]
    for column in columns:
        table = _table(rows, [*groups[-1], column], stderr=False, whole=len(groups) == 1)
        if groups[-1] and _width(table, console) > console.width:
            groups.append([])
        groups[-1].append(column)
    return [_table(rows, g, stderr=False, whole=g is groups[0]) for g in groups]


def _width(table: Table, console: Console) -> int:
    return console.measure(table, options=console.options.update(max_width=10_000)).maximum


def _table(
    rows: Sequence[ScoreRow], columns: Sequence[_Column], *, stderr: bool, whole: bool = True
) -> Table:
    """`whole`: with what is said once for each checkpoint, its size."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("step", justify="right", vertical="bottom", no_wrap=True)
    if whole:
        table.add_column("size", justify="right", vertical="bottom", no_wrap=True)
    for column in columns:
        table.add_column(_padded_header(column), justify="right", no_wrap=True)
    for row in rows:
        cells: list[str | Text] = [str(row.step)]
        if whole:
            cells.append("-" if row.size_bytes is None else words.size(row.size_bytes))
        cells += [_styled(column.cell(row.step, stderr=stderr)) for column in columns]
        table.add_row(*cells)
    return table


def _padded_header(column: _Column) -> Text:
    """Leaves room for the mark behind a value."""
    return Text("\n".join(line + " " for line in column.header.split("\n")))


def _styled(cell: str) -> Text:
    return Text(cell, style="bold green" if cell.endswith("*") else "")


def _fold(name: str) -> list[str]:
    """The name in lines of a column's width, broken behind underscores where it can be."""
    lines = [""]
    for part in name.replace("_", "_\0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(part) > _NAME_WIDTH:
            lines.append("")
        lines[-1] += part
    return [line[i : i + _NAME_WIDTH] for line in lines for i in range(0, len(line), _NAME_WIDTH)]


def _number(value: float, column: Sequence[float]) -> str:
    """With decimals that suit all of the column's values."""
    largest = max((abs(v) for v in column if math.isfinite(v)), default=0.0)
    if largest >= 1e7:
        return f"{value:.2e}"
    decimals = 4 if largest < 10 else 2 if largest < 1000 else 0
    return f"{value:,.{decimals}f}"
