"""Plans what is left anew when workers come or go. Each crew has one; whoever sees the change first does it.

No shard is computed twice by this: claims say who computes what, plans only who is meant to.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from configs.files import file_lock
from configs.rundir import EvaluationDir, write_record
from configs.schema import EvaluateConfig
from tasks.evaluate.claims import Claims, Holder
from tasks.evaluate.live_plan import LivePlan, Rest, live_plan_path, plan_rest, read_live_plan
from tasks.evaluate.plan import EvaluationPlan
from tasks.evaluate.responses import shards_done
from tasks.evaluate.roster import Roster
from tasks.evaluate.schedule_types import Worker
from tasks.evaluate.times import Done, read_times

_LOCK_NAME = "schedule.lock"


class Foreman:
    """Looks after the plan of one evaluation for one crew."""

    def __init__(
        self, evaluation: EvaluationDir, plan: EvaluationPlan, config: EvaluateConfig, crew: Holder
    ) -> None:
        self._evaluation, self.plan, self._crew = evaluation, plan, crew
        self._cpu_cores = config.scorers
        self._claims = Claims(evaluation.claims_dir, crew)
        self._roster = Roster(evaluation.claims_dir, self._claims)
        self._is_new = True

    @contextmanager
    def present(self, workers: Sequence[str]) -> Iterator[None]:
        """The crew and its workers count while the block runs."""
        end = self._claims.keep_alive()
        try:
            with self._roster.joined(self._crew, workers):
                yield
        finally:
            end.set()

    def look(self, restarted: Collection[str] = ()) -> set[str]:
        """Plan anew if that is due; `restarted`: workers of this crew that have died and are started
        again. Returns the workers that have shards to begin."""
        if not (left := self._left()[0]):
            return set()
        live = read_live_plan(self._evaluation, self.plan)
        if restarted or self._why_anew(live, left) is not None:
            with file_lock(self._evaluation.path / _LOCK_NAME):
                live = self._plan_anew(restarted)
        self._is_new = False
        return {work.worker for work in live.shards if work.shard in left} if live else set()

    def _plan_anew(self, restarted: Collection[str]) -> LivePlan | None:
        """Somebody may just have done it: what is the case is looked at again."""
        live = read_live_plan(self._evaluation, self.plan)
        left, under_way = self._left()
        why = self._why_anew(live, left)
        if restarted:
            why = f"{', '.join(sorted(restarted))} died and is started again"
        if why is None or not left:
            return live
        times = read_times(self._evaluation)
        rest = Rest(
            plan=self.plan,
            left=left,
            under_way=under_way,
            scored=[t.name for t in times if t.kind == "score"],
            workers=list(self._workers(live, restarted, times)),
            times=times,
            cpu_cores=self._cpu_cores,
        )
        live = plan_rest(rest, live, why)
        write_record(live_plan_path(self._evaluation), live)
        print(
            f"planned anew, as {why}: {len(left)} shards on {len(rest.workers)} workers, "
            f"done in {live.infer_end_s:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        return live

    def _left(self) -> tuple[list[str], dict[str, tuple[str, float]]]:
        """Shards that are to be begun; and those under way, with their workers and begins."""
        done = shards_done(self._evaluation)
        pending = [shard.name for _, shard in self.plan.shards() if shard.name not in done]
        claims = self._claims.live(set(pending))
        under_way = {name: (c.holder.worker, c.made_at) for name, c in claims.items()}
        done = shards_done(self._evaluation)  # some may have become so while claims were read
        return [n for n in pending if n not in claims and n not in done], {
            name: begun for name, begun in under_way.items() if name not in done
        }

    def _why_anew(self, live: LivePlan | None, left: Sequence[str]) -> str | None:
        """Why another plan is due; None when it is not."""
        if live is None:
            return "there is none"
        present = self._roster.present().keys()
        if gone := {w.name for w in live.workers if w.node} - present:
            return f"{', '.join(sorted(gone))} {'is' if len(gone) == 1 else 'are'} gone"
        if come := present - live.worker_names:
            return f"{', '.join(sorted(come))} {'has' if len(come) == 1 else 'have'} come"
        if live.worker_names - present:
            return "not all nodes are there yet"
        planned = {work.shard for work in live.shards}
        if set(left) - planned:
            return "shards were begun by workers that have died"
        if self._is_new and planned - set(left):
            return "inference goes on"
        return None

    def _workers(
        self, live: LivePlan | None, restarted: Collection[str], times: Sequence[Done]
    ) -> Iterator[Worker]:
        """Those that are present. A new one is ready when it has loaded the model."""
        load_s = statistics.median([t.time_s for t in times if t.kind == "load"] or [0.0])
        known: Mapping[str, Worker] = {w.name: w for w in live.workers} if live else {}
        for name, node in self._roster.present().items():
            is_new = name in restarted or name not in known
            yield Worker(name, node, ready_s=load_s if is_new else 0.0)
