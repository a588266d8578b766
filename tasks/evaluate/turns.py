"""In which order a worker takes shards: its own by the newest plan, then the last ones of others.

The plan is looked at before each shard, so that one that is made anew counts at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from configs.rundir import EvaluationDir
from tasks.evaluate.live_plan import LivePlan, live_plan_path, read_live_plan
from tasks.evaluate.plan import EvaluationPlan, ShardPlan, TaskPlan


class Turns:
    """The shards that one worker is to try, until the newest plan has none that it has not tried."""

    def __init__(self, evaluation: EvaluationDir, plan: EvaluationPlan, worker: str) -> None:
        self._evaluation, self._plan, self._worker = evaluation, plan, worker
        self._shards = {shard.name: (task, shard) for task, shard in plan.shards()}
        self._seen: tuple[int, int] | None = None
        self._own: deque[str] = deque()
        self._others: dict[str, list[str]] = {}
        self._left_s: dict[str, float] = {}

    def __iter__(self) -> Iterator[tuple[TaskPlan, ShardPlan]]:
        while (name := self._next()) is not None:
            yield self._shards[name]

    def _next(self) -> str | None:
        self._look()
        if self._own:
            return self._own.popleft()
        if not self._left_s:
            return None
        slowest = max(self._left_s, key=lambda owner: self._left_s[owner])
        name = self._others[slowest].pop()
        self._left_s[slowest] -= self._shards[name][1].expected_s
        if not self._others[slowest]:
            del self._left_s[slowest]
        return name

    def _look(self) -> None:
        """Take up the newest plan."""
        try:
            status = live_plan_path(self._evaluation).stat()
        except FileNotFoundError:
            return
        seen = (status.st_ino, status.st_mtime_ns)
        if seen == self._seen:
            return
        live = read_live_plan(self._evaluation, self._plan)
        if live is not None:
            self._seen = seen
            self._take_up(live)

    def _take_up(self, live: LivePlan) -> None:
        self._own.clear()
        self._others.clear()
        self._left_s.clear()
        for work in live.shards:
            if work.worker == self._worker:
                self._own.append(work.shard)
            else:
                self._others.setdefault(work.worker, []).append(work.shard)
                expected_s = self._shards[work.shard][1].expected_s
                self._left_s[work.worker] = self._left_s.get(work.worker, 0.0) + expected_s
