"""A compressed log as text: for a person, or for a language model within a budget of tokens.

Lines come in the order of the log, each with its number; what is left out between them is said. When
the budget is short, causes come first, and of causes the first and the last ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tasks.diagnose.compressed import Compressed
from tasks.diagnose.logs import LogLine
from tasks.diagnose.templates import Template, rank_ranges
from tasks.diagnose.verbatim import Position, Verbatim

_CHARS_PER_TOKEN = 3.0
"""Fewer than prose has: logs are numbers, paths and punctuation."""
_MAX_LINE_CHARS = 400
_LINE_OVERHEAD_CHARS = 40
_SHARE_OF_HEAD = 0.2
"""Of the budget, for the summary."""
_REASONS = ("cause", "traceback", "metric", "end", "context", "template")
_REPEATED = len(_REASONS)


@dataclass(frozen=True)
class _Entry:
    position: Position
    verbatim: Verbatim

    @property
    def chars(self) -> int:
        return min(len(self.verbatim.line.text), _MAX_LINE_CHARS) + _LINE_OVERHEAD_CHARS


def render(compressed: Compressed, max_tokens: int | None = None) -> str:
    """The compressed log as text; all of it, or what fits into the budget."""
    budget = None if max_tokens is None else int(max_tokens * _CHARS_PER_TOKEN)
    head = _summary(compressed, None if budget is None else int(budget * _SHARE_OF_HEAD))
    entries = [_Entry(position, verbatim) for position, verbatim in compressed.verbatim]
    folds = {(t.first.file, t.first.number): t for t in compressed.folded if t.first is not None}
    if budget is not None:
        entries = _select(entries, folds, budget - len(head))
    text = "\n".join([head, *_lines(entries, folds)])
    if budget is None or len(text) <= budget:
        return text
    return text[:budget].rpartition("\n")[0]


def _summary(compressed: Compressed, max_chars: int | None) -> str:
    dropped = compressed.dropped()
    parts = [
        f"{compressed.lines} lines of {len(compressed.sources)} source(s), "
        f"{compressed.kept_lines} kept, {sum(dropped.values())} dropped as routine",
    ]
    if compressed.left_out:
        parts.append(f"{compressed.left_out} more lines that could be causes found no room")
    for template in sorted(
        (t for t in compressed.templates if t.kind == "dropped"), key=lambda t: -t.count
    ):
        parts.append(f"  {template.count} x {template.text}, last {_last(template)}")
    text = "\n".join(parts)
    return text if max_chars is None else text[:max_chars]


def _select(
    entries: Sequence[_Entry], folds: Mapping[tuple[str, int], Template], budget: int
) -> list[_Entry]:
    """What fits: reason by reason, of each in turn from the front and the back."""
    chosen: list[_Entry] = []
    by_weight: dict[int, list[_Entry]] = {}
    for entry in entries:
        line, why = entry.verbatim.line, entry.verbatim.why
        repeated = why == "cause" and (line.file, line.number) not in folds
        weight = _REPEATED if repeated else _REASONS.index(why)
        by_weight.setdefault(weight, []).append(entry)
    for weight in sorted(by_weight):
        for entry in _from_both_ends(by_weight[weight]):
            if entry.chars > budget:
                break
            budget -= entry.chars
            chosen.append(entry)
    return sorted(chosen, key=lambda entry: entry.position)


def _from_both_ends(entries: Sequence[_Entry]) -> Iterable[_Entry]:
    """Two from the front for each from the back: the first error is more often the cause."""
    front, back = 0, len(entries) - 1
    turn = 0
    while front <= back:
        turn += 1
        if turn % 3:
            yield entries[front]
            front += 1
        else:
            yield entries[back]
            back -= 1


def _lines(entries: Sequence[_Entry], folds: Mapping[tuple[str, int], Template]) -> Iterable[str]:
    source, number = -1, 0
    for entry in entries:
        line = entry.verbatim.line
        if entry.position[0] != source:
            source, number = entry.position[0], 0
            yield f"--- {line.file}"
        if line.number > number + 1:
            yield f"      ... {line.number - number - 1} lines"
        number = line.number
        yield f"{line.number:>6} {_cut(line)}{_fold(folds.get((line.file, line.number)))}"


def _cut(line: LogLine) -> str:
    text = line.text.rstrip()
    return text if len(text) <= _MAX_LINE_CHARS else text[: _MAX_LINE_CHARS - 4] + " ..."


def _fold(template: Template | None) -> str:
    """How often a line came again, until where, by whom."""
    if template is None or template.count == 1:
        return ""
    ranks = f", ranks {rank_ranges(template.ranks)}" if template.ranks else ""
    return f"  [x{template.count}, last {_last(template)}{ranks}]"


def _last(template: Template) -> str:
    name = template.last_name.rpartition("/")[2]
    return f"{name}:{template.last_number}"
