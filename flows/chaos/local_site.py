"""Trials on this machine, under the local launcher."""

from __future__ import annotations

from typing import Any

from configs.rundir import RunDir
from flows.chaos.schedule import Plan, Strike, make_plans
from flows.chaos.setup import INTERVAL_STEPS, RANKS, STEPS
from flows.chaos.site import Aim, aim_at, job_processes


class LocalSite:
    """All ranks under one supervisor; nothing but processes is struck."""

    name = "local"
    trial_limit_s = 420.0

    def config(self) -> dict[str, Any]:
        return {"launcher": {"processes_per_node": RANKS}}

    def plans(self, seed: int, trials: int) -> list[Plan]:
        return make_plans(seed, trials, steps=STEPS, interval_steps=INTERVAL_STEPS, ranks=RANKS)

    def aim(self, run: RunDir, strike: Strike, flow_pid: int) -> Aim | None:
        return aim_at([] if strike.target == "flow" else job_processes(run), strike, flow_pid)

    def tend(self) -> None:
        """Nothing here is away for a while."""

    def put_right(self, run: RunDir) -> dict[str, Any]:
        return {}
