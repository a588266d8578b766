"""Rounds of saves and the steps between them: what is measured of each save, and the medians."""

from __future__ import annotations

import gc
import logging
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from configs.errors import RunFailedError
from tasks.train.bench_checkpoint_peers import Arm

logger = logging.getLogger(__name__)

QUIET_STEPS = 3
"""Steps without a save, before and after each save."""
SAVE_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class StepTime:
    """One step: the time that it took, without what it waited for a save."""

    busy_s: float
    waited_s: float


@dataclass
class SaveTime:
    """One save, as measured."""

    begin_s: float
    """The call."""
    waited_s: float = 0.0
    """What the optimizer waited in the steps that followed."""
    finish_s: float = 0.0
    """What was done between the steps."""
    steps_s: list[float] = field(default_factory=list)
    """The steps until it was whole."""
    quiet_step_s: float = 0.0
    """Median of the steps around it."""
    whole_after_s: float = 0.0

    @property
    def blocked_s(self) -> float:
        return self.begin_s + self.waited_s + self.finish_s

    @property
    def slowdown_s(self) -> float:
        return sum(self.steps_s) - len(self.steps_s) * self.quiet_step_s


@dataclass
class Bench:
    """Takes a step and a save at a time."""

    step: Callable[[Callable[[], None]], StepTime]
    """A training step that calls what it is given right before the optimizer."""
    now: Callable[[], float]
    """Seconds, after all that the device was given is done."""
    current_step: Callable[[], int]

    def quiet_steps(self, count: int = QUIET_STEPS) -> list[float]:
        return [self.step(_nothing).busy_s for _ in range(count)]

    def save(self, arm: Arm) -> tuple[SaveTime, int]:
        """Save and train on until the save is whole; also returns the step that was saved."""
        saved = self.current_step()
        started = self.now()
        arm.begin(saved)
        times = SaveTime(begin_s=time.perf_counter() - started)
        while not self._whole(arm, times):
            if self.now() - started > SAVE_TIMEOUT_S:
                raise RunFailedError(f"{arm.name}: not saved within {SAVE_TIMEOUT_S:g} s")
            step = self.step(arm.before_optimizer)
            times.steps_s.append(step.busy_s)
            times.waited_s += step.waited_s
        times.whole_after_s = self.now() - started
        return times, saved

    def _whole(self, arm: Arm, times: SaveTime) -> bool:
        started = self.now()
        whole = arm.poll()
        times.finish_s += time.perf_counter() - started
        return whole


def measure_rounds(
    bench: Bench,
    arms: Mapping[str, Arm],
    rounds: int,
    around: Callable[[str, Arm, int], Callable[[int], None]],
) -> dict[str, list[SaveTime]]:
    """Each arm saves once in each round, in an order that turns.

    `around(name, arm, round)` is called before each save, and what it returns after it, with the
    saved step: nothing of it is measured.
    """
    measured: dict[str, list[SaveTime]] = {name: [] for name in arms}
    names = list(arms)
    before = bench.quiet_steps()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            arm = arms[name]
            after_save = around(name, arm, turn)
            times, saved = bench.save(arm)
            after_save(saved)
            shutil.rmtree(arm.folder(saved))
            gc.collect()
            after = bench.quiet_steps()
            times.quiet_step_s = statistics.median(before + after)
            measured[name].append(times)
            logger.info("round %d %s: %s", turn, name, asdict(times))
            before = after
    return measured


def summarize(measured: Mapping[str, list[SaveTime]], synchronous: str) -> dict[str, Any]:
    """`results`: one row an arm; `ways`: one for each way to use an arm; `details`: each save, in order.

    Medians, without the first save. Of an arm that is used in two ways, the one that loses less counts.
    """
    blocked = {
        name: statistics.median(times.blocked_s for times in saves[1:])
        for name, saves in measured.items()
    }
    ways = [
        {
            "name": name,
            "blocked_s": blocked[name],
            "first_blocked_s": saves[0].blocked_s,
            "slowdown_s": statistics.median(times.slowdown_s for times in saves[1:]),
            "ratio_vs_sync": blocked[synchronous] / blocked[name],
        }
        for name, saves in measured.items()
    ]
    best: dict[str, dict[str, Any]] = {}
    for way in ways:
        name = str(way["name"]).partition(":")[0]
        if name not in best or lost_s(way) < lost_s(best[name]):
            best[name] = way
    return {
        "results": [{**way, "name": name} for name, way in best.items()],
        "ways": ways,
        "details": {
            name: [_described(times) for times in saves] for name, saves in measured.items()
        },
    }


def lost_s(row: Mapping[str, Any]) -> float:
    """All that a save costs training."""
    return float(row["blocked_s"] + row["slowdown_s"])


def _described(times: SaveTime) -> dict[str, Any]:
    return {"blocked_s": times.blocked_s, "slowdown_s": times.slowdown_s, **asdict(times)}


def _nothing() -> None:
    return None
