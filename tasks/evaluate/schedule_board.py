"""Who computes which shard now: hands shards out, keeps what is done, moves work when workers come and go.

A worker takes the shards of its own queue in order; when that is empty, first what lost workers have
left, then the last shard of the worker that has most work before it. Every step costs the same,
however many shards there are.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

from configs.errors import EvaluationError
from tasks.evaluate.schedule_types import PlannedShard, SchedulePlan

ShardKey = tuple[str, int, int]
"""Task, first request, request after the last: what a shard is, wherever it runs."""


class ShardBoard:
    """The state of one plan's shards."""

    def __init__(self, plan: SchedulePlan, done: Iterable[ShardKey] = ()) -> None:
        """`done`: shards whose responses are there already."""
        self._shards = {shard.key: shard for shard in plan.shards}
        self._left_of = dict.fromkeys((shard.task for shard in plan.shards), 0)
        self._queues: dict[str, deque[ShardKey]] = {worker.name: deque() for worker in plan.workers}
        self._queued_s = dict.fromkeys(self._queues, 0.0)
        self._orphans: deque[ShardKey] = deque()
        self._running: dict[ShardKey, str] = {}
        self._running_on: dict[str, ShardKey] = {}
        self._done: set[ShardKey] = set()
        found = set(done)
        for shard in plan.shards:
            if shard.key in found:
                self._done.add(shard.key)
                continue
            self._left_of[shard.task] += 1
            self._queues[shard.worker].append(shard.key)
            self._queued_s[shard.worker] += _length_s(shard)
        # The worker with most work first. An entry that is no longer true is dropped when it is met.
        self._busiest = [(-queued, worker) for worker, queued in self._queued_s.items()]
        heapq.heapify(self._busiest)

    @property
    def left(self) -> int:
        """Shards that are not done."""
        return len(self._shards) - len(self._done)

    @property
    def done(self) -> frozenset[ShardKey]:
        """Shards whose responses are there."""
        return frozenset(self._done)

    @property
    def running(self) -> dict[ShardKey, str]:
        """Shards that are computed now, and by whom."""
        return dict(self._running)

    def is_inferred(self, task: str) -> bool:
        """Whether all of the task's shards are done."""
        return not self._left_of.get(task, 0)

    def add_worker(self, worker: str) -> None:
        """A worker has come: it lives on what others have left or have yet to do."""
        self._queues.setdefault(worker, deque())
        self._queued_s.setdefault(worker, 0.0)

    def take(self, worker: str) -> PlannedShard | None:
        """The shard that `worker` shall compute now; None when nothing is left to begin."""
        if worker in self._running_on:
            raise EvaluationError(f"worker {worker} asks for a shard while it computes one")
        self.add_worker(worker)
        key = self._next_of(worker)
        if key is None:
            return None
        self._running[key] = worker
        self._running_on[worker] = key
        return self._shards[key]

    def finish(self, worker: str) -> str | None:
        """The worker's shard is done. The task's name, when that was its last one."""
        key = self._running_on.pop(worker, None)
        if key is None:
            raise EvaluationError(f"worker {worker} reports a shard that it was not given")
        del self._running[key]
        self._done.add(key)
        task = key[0]
        self._left_of[task] -= 1
        return None if self._left_of[task] else task

    def lose_worker(self, worker: str) -> PlannedShard | None:
        """The worker is gone: what it was computing, and what waited for it, is for others to do.

        The shard that is lost with it, if any.
        """
        key = self._running_on.pop(worker, None)
        waiting = self._queues.pop(worker, deque())
        self._queued_s.pop(worker, None)
        if key is not None:
            del self._running[key]
            waiting.appendleft(key)
        self._orphans.extend(waiting)
        return None if key is None else self._shards[key]

    def _next_of(self, worker: str) -> ShardKey | None:
        own = self._queues[worker]
        if own:
            return self._taken(worker, own.popleft())
        if self._orphans:
            return self._orphans.popleft()
        while self._busiest:
            queued, victim = self._busiest[0]
            now_s = self._queued_s.get(victim, 0.0)
            if not self._queues.get(victim):
                heapq.heappop(self._busiest)
            elif -queued != now_s:
                heapq.heapreplace(self._busiest, (-now_s, victim))
            else:
                return self._taken(victim, self._queues[victim].pop())
        return None

    def _taken(self, worker: str, key: ShardKey) -> ShardKey:
        self._queued_s[worker] -= _length_s(self._shards[key])
        return key


def _length_s(shard: PlannedShard) -> float:
    return shard.end_s - shard.start_s


def ranges_left(
    shards: Sequence[PlannedShard], done: Iterable[ShardKey]
) -> dict[str, list[tuple[int, int]]]:
    """Task -> the ranges of requests that are not in `done`, joined where they touch."""
    found = set(done)
    left: dict[str, list[tuple[int, int]]] = {}
    for shard in sorted(shards, key=lambda shard: (shard.task, shard.start)):
        if shard.key in found:
            continue
        ranges = left.setdefault(shard.task, [])
        if ranges and ranges[-1][1] == shard.start:
            ranges[-1] = (ranges[-1][0], shard.stop)
        else:
            ranges.append((shard.start, shard.stop))
    return left
