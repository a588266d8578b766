"""Begins a checkpoint's evaluation while the one before is at its end, so that no GPU waits between them.

The next one is exported, planned and staged meanwhile, and its workers have imported what they need.
On one machine a worker loads it as soon as its device is free, beside the last shards of the others; on
Slurm its job starts when, and where, the scheduler has GPUs for it. Whoever evaluates the checkpoint
next finds these jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from configs.errors import OverlandError
from configs.rundir import EvaluationDir, RunDir
from configs.schema import RunConfig
from infra.launch import make_launcher
from infra.launch.base import JobHandle, JobState
from tasks.evaluate.holding import in_charge
from tasks.evaluate.live_plan import read_live_plan
from tasks.evaluate.plan import EvaluationPlan, config_of, current_plan
from tasks.evaluate.responses import shards_done
from tasks.evaluate.task_jobs import (
    Work,
    begin_stage,
    cancel_jobs,
    open_evaluation,
    stages_left,
    work_on,
)

_LOOK_S = 1.0
_TAIL_S = 180.0
"""The next one is begun when the present one's inference will end within this."""


class Ahead:
    """What comes after the present checkpoint."""

    def __init__(
        self,
        config: RunConfig,
        choose: Callable[[], int | None],
        warn: Callable[[str], None],
    ) -> None:
        """`choose` says which is next: its turn has come then."""
        self._config, self._choose, self._warn = config, choose, warn
        self._present: EvaluationDir | None = None
        self._plan: EvaluationPlan | None = None
        self._step: int | None = None
        self._work: Work | None = None
        self._export: JobHandle | None = None
        self._is_begun = False
        self._next_look = 0.0

    def beside(self, step: int) -> Callable[[], None]:
        """What is to be called now and then while this step is evaluated."""
        self._present = RunDir(self._config.resolved_run_dir()).evaluation(step)
        self._plan = None
        return self._look

    def take(self) -> int | None:
        """The step that was begun, if any, which is evaluated now."""
        step, self._step, self._work, self._export = self._step, None, None, None
        self._is_begun = False
        return step

    def close(self) -> None:
        """End what was begun and will not be evaluated now."""
        if self._work is not None:
            cancel_jobs(self._work.launcher, self._work.evaluation)

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._next_look or self._is_begun:
            return
        self._next_look = now + _LOOK_S
        if not self._is_near_its_end():
            return
        if self._step is None and (step := self._choose()) is not None:
            self._step = step
        if self._step is None:
            return
        try:
            self._is_begun = self._advance(self._step)
        except (OverlandError, OSError) as error:
            self._is_begun = True  # its own turn will come, and says why it failed
            self._warn(f"evaluation of step {self._step} cannot be begun yet: {error}")

    def _advance(self, step: int) -> bool:
        """One step further, if that is possible now; returns whether there is nothing more to do."""
        if self._work is None:
            launcher = make_launcher(self._config.launcher)
            self._work = work_on(self._config, step, launcher, self._warn)
            if self._work.evaluation.scores() is not None:
                return True
            with in_charge(self._work.evaluation):
                needs_export = open_evaluation(self._work)
            if needs_export:
                self._export = begin_stage(self._work, "export", {})
        if self._export is not None:
            status = self._work.launcher.poll(self._export)
            if not status.state.final:
                return False
            if status.state is not JobState.COMPLETED:
                return True
        begun: dict[str, JobHandle] = {}
        for stage in stages_left(self._work):
            if stage != "score":
                begun[stage] = begin_stage(self._work, stage, begun)
        return True

    def _is_near_its_end(self) -> bool:
        """Whether the present one will soon have all responses, by how far it has come since its plan."""
        assert self._present is not None
        if self._plan is None:
            if not self._present.config_path.is_file():
                return False
            self._plan = current_plan(config_of(self._present), self._present)
        if self._plan is None or (live := read_live_plan(self._present, self._plan)) is None:
            return False
        done = shards_done(self._present)
        all_s = sum(work.end_s - work.start_s for work in live.shards)
        left_s = sum(w.end_s - w.start_s for w in live.shards if w.shard not in done)
        if not left_s:
            return True
        share = 1 - left_s / all_s
        took_s = time.time() - live.made_at
        return share > 0 and took_s * left_s / all_s / share <= _TAIL_S
