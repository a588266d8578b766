"""Flow: pretraining through failures, one attempt after another within the budgets."""

from __future__ import annotations

import time

from prefect import flow

from configs.errors import RunFailedError
from configs.rundir import RunDir
from configs.schema import RunConfig
from flows.cancellation import end_training
from flows.locks import holds
from flows.session import open_run, tracked
from tasks.data.task import prepared_data
from tasks.diagnose.task import diagnose
from tasks.recover.task import decide_action
from tasks.train.task import begin_attempt, watch_attempt


@flow(name="pretrain", flow_run_name="{config.name}-pretrain", on_cancellation=[end_training])
def pretrain(config: RunConfig) -> None:
    """Train to the last step; raises RunFailedError with the verdict when that cannot be done.

    Started again after any interruption it goes on where the run directory says that it stands.
    """
    with open_run(config, "pretrain") as run:
        prepared_data(config)
        with tracked(run, config):
            recover_last_attempt(config, run)
            while (number := begin_attempt(config)) is not None:
                # Whoever evaluates beside this flow sees the commits; deployments need the event.
                record = watch_attempt(config, number, announce=not holds(run, "evaluate"))
                if record.outcome == "failed":
                    recover(config, run, number)


def recover_last_attempt(config: RunConfig, run: RunDir) -> None:
    """Finish what an earlier flow had not: the verdict and action of an attempt that failed.

    Had it decided to stop, then a person has started it again: that decision is not repeated.
    """
    attempts = run.attempts()
    record = attempts[-1].record() if attempts else None
    if record and record.outcome == "failed" and attempts[-1].action() is None:
        recover(config, run, record.number)


def recover(config: RunConfig, run: RunDir, number: int) -> None:
    """Diagnose a failed attempt and act: wait and return for a restart, raise to stop."""
    verdict = diagnose(config, number)
    action = decide_action(config, number)
    if action.stop:
        raise RunFailedError(
            f"attempt {number} failed with {verdict.failure_class}: {action.reason} "
            f"(logs in {run.attempt(number).path})"
        )
    time.sleep(action.wait_s)
