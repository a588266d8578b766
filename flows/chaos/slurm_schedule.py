"""What is struck in each trial of `overland chaos --launcher slurm`: all of it follows from the seed.

Seven trials have every fault once, in random order, and so have the next seven.
"""

from __future__ import annotations

import random

from flows.chaos.schedule import Moment, Plan, Signal, Strike, Target, When, draw_moment

FAULTS: tuple[tuple[Target, Signal], ...] = (
    ("node", "SIGKILL"),
    ("rank", "SIGKILL"),
    ("flow", "SIGKILL"),
    ("slurmctld", "restart"),
    ("slurmrestd", "SIGKILL"),
    ("job", "preemption"),
    ("job", "time limit"),
)
SECOND_STRIKE_EVERY = 3
"""One trial in so many is struck twice."""
LONGEST_AWAY_S = {"slurmctld": 20.0, "slurmrestd": 60.0}
_SHORTEST_AWAY_S = 3.0
_LATEST_SECOND = 0.4
_TIME_LIMIT_SHARES = (0.15, 0.25)
"""Slurm looks at limits every 30 s: later, the run would be done before."""
_STORAGE_ONLY = ("node", "job")
"""After these a job runs on other nodes, in whose memory there is nothing. Here all nodes are one
machine, which would know more than they do."""


def make_slurm_plans(
    seed: int, trials: int, *, steps: int, interval_steps: int, ranks: int
) -> list[Plan]:
    """The plans of all trials."""
    saves = range(interval_steps, steps + 1, interval_steps)
    order: list[tuple[Target, Signal]] = []
    while len(order) < trials:
        turn = list(FAULTS)
        random.Random(f"slurm-{seed}-{len(order)}").shuffle(turn)  # noqa: S311
        order += turn
    plans = []
    for number, (target, deed) in enumerate(order[:trials], start=1):
        draw = random.Random(f"slurm-{seed}-trial-{number}")  # noqa: S311
        strikes = [_strike(draw, target, deed, _first_moment(draw, target, deed, saves), ranks)]
        if number % SECOND_STRIKE_EVERY == 0:
            moment = Moment("later", fraction=_LATEST_SECOND * draw.random())
            strikes.append(_strike(draw, *draw.choice(FAULTS), moment, ranks))
        keeps_memory = not any(strike.target in _STORAGE_ONLY for strike in strikes)
        plans.append(Plan(number, tuple(strikes), keeps_memory))
    return plans


def _strike(
    draw: random.Random, target: Target, deed: Signal, moment: Moment, ranks: int
) -> Strike:
    longest_s = LONGEST_AWAY_S.get(target)
    away_s = draw.uniform(_SHORTEST_AWAY_S, longest_s) if longest_s is not None else 0.0
    return Strike(target, deed, draw.randrange(ranks), moment, away_s)


def _first_moment(draw: random.Random, target: Target, deed: Signal, saves: range) -> Moment:
    if deed == "time limit":
        return Moment("any", fraction=draw.uniform(*_TIME_LIMIT_SHARES))
    whens: tuple[When, ...] = ("any", "any")
    if target in ("rank", "node"):
        whens = ("any", "save", "commit")
    elif target in ("flow", "slurmrestd", "slurmctld"):
        whens = ("any", "submit")
    when = draw.choice(whens)
    if when == "submit":
        return Moment(when)
    return draw_moment(draw, when, saves)
