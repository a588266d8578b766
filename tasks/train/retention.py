"""Which checkpoints are kept, and why: the `checkpoint.keep_*` rules, and what resuming may need.

`keep` is a pure function of the facts; :mod:`tasks.train.removal` gathers them and removes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from configs.schema import RunConfig


@dataclass(frozen=True)
class Rules:
    """What the config says."""

    last: int
    every_steps: int | None = None
    best: int = 0
    best_is_least: bool = True
    best_metric: str = ""
    patience_steps: int = 0
    """A spike is found so many steps after it began, at the latest."""


@dataclass(frozen=True)
class Facts:
    """What the run directory says."""

    current_step: int
    """The step that was just committed. What is later belongs to a training that was given up, and is
    about to be saved anew."""
    scores: Mapping[int, float] = field(default_factory=dict)
    """Value of the metric of each checkpoint that has one."""
    anomaly_onset: int | None = None
    """First step that the last anomaly has struck."""
    void: frozenset[int] = frozenset()
    """Rolled back: no part of the run any more."""
    waiting: frozenset[int] = frozenset()
    """To be evaluated, and neither scored nor failed yet."""
    unhealthy: frozenset[int] = frozenset()
    """Their scores have regressed, and the config wants them passed over."""
    proven: frozenset[int] = frozenset()
    """Where it wants so: their scores were compared, and have not regressed."""


@dataclass(frozen=True)
class Decision:
    """Every checkpoint is in one of these."""

    kept: dict[int, list[str]]
    """Step -> the reasons."""
    removed: dict[int, str]
    """Step -> the reason."""


def rules_of(config: RunConfig) -> Rules | None:
    """The rules of a config; None when everything is kept."""
    checkpoint = config.checkpoint
    if checkpoint.keep_last is None:
        return None
    return Rules(
        last=checkpoint.keep_last,
        every_steps=checkpoint.keep_every_steps,
        best=checkpoint.keep_best,
        best_is_least=checkpoint.keep_best_mode == "min",
        best_metric=checkpoint.keep_best_metric,
        patience_steps=config.anomalies.spike_patience_steps if config.anomalies.enabled else 0,
    )


def keep(checkpoints: Iterable[int], rules: Rules, facts: Facts) -> Decision:
    """Decide over the committed checkpoints of these steps."""
    steps = sorted(set(checkpoints))
    ahead = [step for step in steps if step > facts.current_step]
    usable = [step for step in steps if step <= facts.current_step and step not in facts.void]
    sound = [step for step in usable if step not in facts.unhealthy]
    kept: dict[int, list[str]] = {}

    def keep_for(reason: str, those: Iterable[int]) -> None:
        for step in those:
            kept.setdefault(step, []).append(reason)

    keep_for("training has not come there again", ahead)
    keep_for(f"one of the newest {rules.last}", usable[-rules.last :])
    if rules.every_steps is not None:
        multiples = [step for step in usable if step % rules.every_steps == 0]
        keep_for(f"a multiple of {rules.every_steps} steps", multiples)
    keep_for(f"one of the best {rules.best}", _best(usable, rules, facts))
    if facts.anomaly_onset is not None:
        onset = facts.anomaly_onset
        healthy = _newest(sound, before=onset) or _newest(usable, before=onset)
        keep_for(f"the last one from before the anomaly at step {facts.anomaly_onset}", healthy)
    if rules.patience_steps:
        # A spike that is found at the next step has begun after this one.
        earliest = facts.current_step - rules.patience_steps + 1
        safe = _newest(sound, before=earliest) or _newest(usable, before=earliest)
        keep_for(f"a spike since could be found only {rules.patience_steps} steps later", safe)
    proven = [step for step in sound if step in facts.proven]
    keep_for("the newest whose scores are known not to have regressed", proven[-1:])
    keep_for("waits for its evaluation", [step for step in usable if step in facts.waiting])
    removed = {
        step: "it was rolled back" if step in facts.void else "no rule keeps it"
        for step in steps
        if step not in kept
    }
    return Decision({step: kept[step] for step in sorted(kept)}, removed)


def _best(usable: list[int], rules: Rules, facts: Facts) -> list[int]:
    """Of equal ones, the newer."""
    scored = [
        (facts.scores[step] if rules.best_is_least else -facts.scores[step], -step)
        for step in usable
        if step in facts.scores and not math.isnan(facts.scores[step])
    ]
    return [-negative for _, negative in sorted(scored)[: rules.best]]


def _newest(steps: list[int], *, before: int) -> list[int]:
    return [step for step in steps if step < before][-1:]
