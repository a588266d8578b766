"""Flow: pretraining through failures, one attempt after another within the budgets."""

from __future__ import annotations

import time

from prefect import flow
from prefect.logging import get_run_logger

from configs.errors import RunFailedError, RunStoppedError
from configs.records import AttemptRecord
from configs.rundir import RunDir
from configs.schema import RunConfig
from flows.cancellation import end_training
from flows.locks import holds, waited_since
from flows.session import is_restarted, open_run, tracked
from flows.show.progress import say
from tasks.data.task import prepared_data
from tasks.diagnose.task import diagnose, learn_from_logs
from tasks.recover.task import check_suspects, decide_action, plan_attempt
from tasks.train.task import (
    STOP_FILE,
    begin_attempt,
    forget_stop_file,
    idle_stops,
    remove_unneeded_checkpoints,
    require_storage,
    saved_step,
    stopped_by,
    watch_attempt,
)

MAX_IDLE_STOPS = 3
"""Attempts in a row that may be stopped before their first step: each start takes time for nothing."""


@flow(name="pretrain", flow_run_name="{config.name}-pretrain", on_cancellation=[end_training])
def pretrain(config: RunConfig) -> None:
    """Train to the last step; raises RunFailedError with the verdict when that cannot be done, and
    RunStoppedError when a person has asked it to stop.

    Started again after any interruption it goes on where the run directory says that it stands.
    """
    with open_run(config, "pretrain") as run:
        require_storage(config)
        prepared_data(config)
        with tracked(run, config):
            started_at = time.time()
            end_if_it_was_ended_meanwhile(run)
            if forget_stop_file(run):
                get_run_logger().info("%s is removed: training goes on", run.stop_path)
            recover_last_attempt(config, run)
            number, used = begin(config)
            while number is not None:
                # Whoever evaluates beside this flow sees the commits; deployments need the event.
                announce = not holds(run, "evaluate")
                record = watch_attempt(
                    used,
                    number,
                    announce=announce,
                    restarted=is_restarted(),
                    say=say,
                    flow_started_at=started_at,
                )
                if record.outcome == "failed":
                    recover(config, run, number)
                elif record.outcome == "stopped":
                    leave_or_go_on(run, record, started_at)
                if config.diagnose.log_agent:
                    learn_from_logs(config, number)
                # On a network file system its last checkpoint may not be seen here at once.
                if record.outcome == "completed":
                    break
                number, used = begin(config)
            remove_unneeded_checkpoints(config)


def end_if_it_was_ended_meanwhile(run: RunDir) -> None:
    """Raise what the flow before this one raised, if it ended the run while this one waited for it.

    A server that takes a process for dead starts another one for the same flow run, or two. What was decided
    since then is for them too: nobody has started the run again.
    """
    since, attempts = waited_since(run), run.attempts()
    record = attempts[-1].record() if attempts else None
    if since is None or record is None:
        return
    action, number = attempts[-1].action(), record.number
    if action is not None and action.stop and action.decided_at >= since:
        raise RunFailedError(
            f"attempt {number} has ended this run while this flow waited for it: {action.reason}"
        )
    on_purpose = record.outcome == "cancelled" or stopped_by(run, number) == STOP_FILE
    if on_purpose and (record.ended_at or 0.0) >= since:
        raise RunStoppedError(
            f"training was ended on purpose in attempt {number}, while this flow waited for it: start it again "
            "to continue"
        )


def begin(config: RunConfig) -> tuple[int | None, RunConfig]:
    """The attempt to watch, and the config that it has: on a cluster maybe one for fewer nodes."""
    plan = plan_attempt(config)
    return begin_attempt(plan.config, plan.exclude), plan.config


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
    check_suspects(config, number, verdict, say)
    action = decide_action(config, number)
    if action.stop:
        raise RunFailedError(
            f"attempt {number} failed with {verdict.failure_class}: {action.reason} "
            f"(logs in {run.attempt(number).path})"
        )
    time.sleep(action.wait_s)


def leave_or_go_on(run: RunDir, record: AttemptRecord, started_at: float) -> None:
    """After an attempt that was asked to stop and has saved: return to go on at once, raise to leave.

    A scheduler that wanted its machine back, or a signal whose sender nobody knows, costs no budget.
    A stop file is for this flow too, unless it was obeyed before this flow was started.
    """
    cause = stopped_by(run, record.number)
    if cause == STOP_FILE and (record.ended_at or 0.0) >= started_at:
        raise RunStoppedError(
            f"training has stopped as {run.stop_path} asked, saved at step {saved_step(run):,}: "
            "run the same command again to continue"
        )
    if (idle := idle_stops(run)) >= MAX_IDLE_STOPS:
        raise RunFailedError(
            f"{idle} attempts in a row were told to stop ({cause}) before their first step: find out "
            "who sends it, and run the same command again"
        )
    get_run_logger().info("attempt %d was stopped by %s: going on", record.number, cause)
