"""What is struck, how and when in each trial of `overland chaos`: all of it follows from the seed.

Pure: nothing here knows a process. Over 24 trials every process gets every signal at every kind of
moment; fewer trials have every (process, signal) pair as soon as there are eight.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from typing import Literal

Target = Literal["rank", "writer", "agent", "flow", "node", "slurmctld", "slurmrestd", "job"]
"""The last four on a Slurm cluster only."""
Signal = Literal["SIGKILL", "SIGSTOP", "restart", "preemption", "time limit"]
"""The last three are none, but are done to daemons and jobs of a Slurm cluster."""
When = Literal["any", "save", "commit", "later", "submit"]

TARGETS: tuple[Target, ...] = ("rank", "writer", "agent", "flow")
SIGNALS: tuple[Signal, ...] = ("SIGKILL", "SIGSTOP")
WHENS: tuple[When, ...] = ("any", "save", "commit")
SECOND_STRIKE_EVERY = 5
"""One trial in so many is struck twice."""
STORAGE_ONLY_EVERY = 4
"""One trial in so many keeps no snapshots that outlive a process, so that it restarts from storage."""
_LATEST_SECOND = 0.4
"""Of a job's time after the first strike: later ones would often find the run done."""
_NO_STEP = 0


@dataclass(frozen=True)
class Moment:
    """When a strike is due."""

    when: When
    """any: at a share of the undisturbed job's time. save: a checkpoint is being written. commit: all
    ranks have written, and the checkpoint is not committed yet. later: a time after the first strike.
    submit: the first job is being submitted to Slurm."""
    fraction: float = 0.0
    """any, later: share of the undisturbed job's time, from its start to its end."""
    step: int = _NO_STEP
    """save, commit: of the checkpoint, or of the next one when it was committed too fast to be met."""
    stage: Literal["", "opened", "parts", "index"] = ""
    """save: its folder was `opened`, or some ranks have left their `parts`. commit: all `parts` are
    there, or the `index` over them too."""

    def __str__(self) -> str:
        if self.when in ("save", "commit"):
            return f"in the {self.when} of step {self.step} ({self.stage})"
        if self.when == "submit":
            return "while its job is submitted"
        start = "its start" if self.when == "any" else "the first strike"
        return f"{self.fraction:.0%} of a job's time after {start}"


@dataclass(frozen=True)
class Strike:
    """One signal to one process, or what else can be done to a cluster."""

    target: Target
    signal: Signal
    rank: int
    """Which rank, or the writer or node of which rank; of no meaning for the others."""
    moment: Moment
    away_s: float = 0.0
    """How long a daemon of Slurm stays away."""

    def __str__(self) -> str:
        whose = {
            "rank": f"rank {self.rank}",
            "writer": f"the writer of rank {self.rank}",
            "node": f"the node of rank {self.rank}",
            "slurmctld": f"slurmctld, {self.away_s:.0f} s away,",
            "slurmrestd": f"slurmrestd, {self.away_s:.0f} s away,",
        }
        word = "to" if self.signal.startswith("SIG") else "of"
        return f"{self.signal} {word} {whose.get(self.target, f'the {self.target}')} {self.moment}"


@dataclass(frozen=True)
class Plan:
    """One trial."""

    number: int
    strikes: tuple[Strike, ...]
    keeps_memory: bool = True
    """Whether snapshots outlive their process (checkpoint.memory)."""


@dataclass(frozen=True)
class Timeline:
    """How long the undisturbed job took, in parts."""

    startup_s: float
    """To the begin of the first step."""
    step_s: float
    closing_s: float
    """From the last step to the job's end."""
    steps: int

    @property
    def total_s(self) -> float:
        return self.startup_s + self.steps * self.step_s + self.closing_s

    def place(self, fraction: float) -> tuple[int, float]:
        """A share of the whole time as a step, and the seconds after it; step 0 is the job's start.

        Steps are what a faster or slower trial has in common with the undisturbed run.
        """
        rest_s = fraction * self.total_s - self.startup_s
        if rest_s < 0:
            return 0, fraction * self.total_s
        step = min(int(rest_s / self.step_s), self.steps)
        if step == 0:
            return 0, self.startup_s + rest_s
        return step, rest_s - step * self.step_s


def make_plans(
    seed: int, trials: int, *, steps: int, interval_steps: int, ranks: int
) -> list[Plan]:
    """The plans of all trials."""
    pairs = list(product(TARGETS, SIGNALS))
    chosen: list[tuple[Target, Signal, When, bool, bool]] = []
    for i in range(trials):
        target, sent = pairs[i % len(pairs)]
        when = WHENS[(i // len(pairs) + i % len(pairs)) % len(WHENS)]
        is_double = i % SECOND_STRIKE_EVERY == SECOND_STRIKE_EVERY - 1
        # Shifted with each round, so that it does not meet the same pairs again.
        keeps_memory = (i + i // len(pairs)) % STORAGE_ONLY_EVERY != 0
        chosen.append((target, sent, when, is_double, keeps_memory))
    random.Random(f"{seed}").shuffle(chosen)  # noqa: S311
    saves = range(interval_steps, steps + 1, interval_steps)
    plans = []
    for number, (target, sent, when, is_double, keeps_memory) in enumerate(chosen, start=1):
        draw = random.Random(f"{seed}-{number}")  # noqa: S311
        # The writer of rank 0 commits; the others have nothing to do by then.
        is_committer = target == "writer" and when == "commit"
        rank = 0 if is_committer else draw.randrange(ranks)
        first = Strike(target, sent, rank, draw_moment(draw, when, saves))
        strikes = [first, _second(draw, ranks)] if is_double else [first]
        plans.append(Plan(number, tuple(strikes), keeps_memory))
    return plans


def draw_moment(draw: random.Random, when: When, saves: range) -> Moment:
    """Any time, or a save or commit."""
    if when == "any":
        return Moment(when, fraction=draw.random())
    step = draw.choice(saves)
    if when == "save":
        return Moment(when, step=step, stage=draw.choice(("opened", "parts")))
    return Moment(when, step=step, stage=draw.choice(("parts", "index")))


def _second(draw: random.Random, ranks: int) -> Strike:
    """One that often meets the restart after the first one."""
    moment = Moment("later", fraction=_LATEST_SECOND * draw.random())
    return Strike(draw.choice(TARGETS), draw.choice(SIGNALS), draw.randrange(ranks), moment)
