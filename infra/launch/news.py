"""Telling people what becomes of a cluster's job: that it waits and why, that it runs, that nobody answers.

A queue says the same for hours, or goes to and fro between two reasons: each is said once in a while.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from infra.launch.base import JobState, JobStatus

Say = Callable[[str], None]

_AGAIN_S = 3600.0
"""A reason that was said is said again after this long."""
_AWAY_S = 30.0
"""A server that is away for less is nobody's concern."""
_SHOWN = 4


class JobNews:
    """What there is to say about one job; shown every status that is polled, it says the changes."""

    def __init__(
        self,
        what: str,
        say: Say,
        *,
        was_there: bool = False,
        settle_s: float = 3.0,
        starts: bool = True,
    ) -> None:
        """`what` names the job, like `job 12`. `was_there`: an earlier flow has submitted it. A wait is
        said after `settle_s`, as many jobs start at once; `starts`: say that one runs, also where it has
        not waited."""
        self._what, self._say, self._was_there = what, say, was_there
        self._settle_s, self._starts = settle_s, starts
        self._first_s: float | None = None
        self._stale_s: float | None = None
        self._is_away = False
        self._said_at_s: dict[str, float] = {}
        self._running = ""

    def see(self, status: JobStatus, *, now: float | None = None) -> None:
        """Look at how the job stands; `now`: of a clock that goes evenly."""
        now = time.monotonic() if now is None else now
        self._see_silence(status, now)
        if status.state is JobState.PENDING:
            self._see_wait(status, now)
        elif status.state is JobState.RUNNING:
            self._see_run(status)

    def _see_silence(self, status: JobStatus, now: float) -> None:
        if not status.stale:
            if self._is_away:
                self._say("Slurm answers again")
            self._stale_s, self._is_away = None, False
            return
        self._stale_s = now if self._stale_s is None else self._stale_s
        if not self._is_away and now - self._stale_s >= _AWAY_S:
            self._is_away = True
            self._say(
                f"Slurm does not answer: {self._what} goes on, and is asked for until it does"
            )

    def _see_wait(self, status: JobStatus, now: float) -> None:
        self._running = ""
        self._first_s = now if self._first_s is None else self._first_s
        said_s = self._said_at_s.get(status.reason, -math.inf)
        if now - self._first_s >= self._settle_s and now - said_s >= _AGAIN_S:
            self._said_at_s[status.reason] = now
            self._say(f"{self._what} {status.reason or 'waits in the queue'}")

    def _see_run(self, status: JobStatus) -> None:
        words = "is suspended by Slurm" if status.suspended else f"runs on {listed(status.nodes)}"
        if words == self._running:
            return
        is_first, self._running = not self._running, words
        if is_first and not status.suspended:
            if not (self._starts or self._said_at_s):
                return
            if self._was_there:
                words = f"goes on, on {listed(status.nodes)}: it is watched again"
        self._say(f"{self._what} {words}")


def listed(nodes: Sequence[str]) -> str:
    """Nodes for a sentence."""
    if not nodes:
        return "its nodes"
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return ", ".join(nodes[:_SHOWN]) + more
