"""Cuts what is not done into shards, and puts them in the order in which workers take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.evaluate.manifest import RequestRow
from tasks.evaluate.shards import Range, TaskRows, join

_SHARDS_A_WORKER = 4
_CHARACTERS_A_TOKEN = 4
_DEFAULT_GENERATED_TOKENS = 256  # lm-eval's own
_DECODE_OVER_PREFILL = 10
"""A token that is written costs about as much as this many that are read together."""


@dataclass(frozen=True)
class Cut:
    """One shard to be."""

    task: str
    rows: Range
    cost: float
    """In tokens that are read together: what a shard takes beside another, not seconds."""


def cost_of(row: RequestRow) -> float:
    """How long one request may take, out of lengths alone."""
    texts = [argument for argument in row.arguments if isinstance(argument, str)]
    tokens = 1 + sum(map(len, texts)) / _CHARACTERS_A_TOKEN
    if row.request_type == "generate_until":
        settings = row.arguments[1] if len(row.arguments) > 1 else {}
        limit = settings.get("max_gen_toks") or settings.get("max_new_tokens")
        tokens += _DECODE_OVER_PREFILL * (limit or _DEFAULT_GENERATED_TOKENS)
    return tokens * row.repeats


def cut(tasks: Sequence[tuple[TaskRows, Sequence[Range]]], workers: int) -> list[Cut]:
    """Shards for what `tasks` have beside the ranges that are taken, longest first.

    Some more than there are workers, so that the last ones end together and the death of one costs
    little; never within a document, and never of two request types.
    """
    pieces = [(rows, pieces) for rows, taken in tasks for pieces in rows.units(taken)]
    costs = [[_cost(rows, piece) for piece in of_type] for rows, of_type in pieces]
    share = sum(map(sum, costs)) / (workers * _SHARDS_A_WORKER)
    cuts: list[Cut] = []
    for (rows, of_type), piece_costs in zip(pieces, costs, strict=True):
        whole = sum(piece_costs)
        parts = max(1, round(whole / share)) if share else 1
        for group in _even(piece_costs, parts):
            for joined in join([of_type[number] for number in group]):
                cuts.append(Cut(rows.task, joined, _cost(rows, joined)))
    return sorted(cuts, key=lambda c: -c.cost)


def _cost(rows: TaskRows, piece: Range) -> float:
    return sum(cost_of(row) for row in rows.rows[slice(*piece)])


def _even(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Numbers of the pieces in `parts` groups of about the same cost, in order; none is empty."""
    goal = sum(costs) / parts
    groups: list[list[int]] = [[]]
    reached = 0.0
    for number, cost in enumerate(costs):
        if groups[-1] and reached + cost / 2 > goal * len(groups) and len(groups) < parts:
            groups.append([])
        groups[-1].append(number)
        reached += cost
    return groups
