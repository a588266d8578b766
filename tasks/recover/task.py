"""Prefect tasks of the recover stage: what to do about a verdict, and where the time went."""

from __future__ import annotations

import time

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.records import Action, Goodput
from configs.rundir import RunDir, write_record
from configs.schema import RunConfig
from infra.launch import make_launcher
from tasks.recover.goodput import compute_goodput
from tasks.recover.policy import attempt_history, decide
from tasks.recover.rollback import ground_of


@task(name="decide-action", cache_policy=NO_CACHE)
def decide_action(config: RunConfig, number: int) -> Action:
    """Decide on the failed attempt by its verdict and the run's history; keeps an earlier decision."""
    run = RunDir(config.resolved_run_dir())
    attempt = run.attempt(number)
    action = attempt.action()
    if action is None:
        pool = make_launcher(config.launcher).nodes()
        action = decide(
            attempt_history(run),
            config.recovery,
            now=time.time(),
            pool=pool,
            ground=ground_of(run, config.train),
        )
        write_record(attempt.action_path, action)
    get_run_logger().info("attempt %d: %s", number, action.reason)
    return action


def account_goodput(run: RunDir, *, live: bool = False) -> Goodput:
    """Where the wall time of the run's training went; of a live run up to now, else to its last event."""
    return compute_goodput(run, now=time.time() if live else None)
