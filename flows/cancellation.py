"""When a flow run is cancelled on Prefect's page, its jobs end as well.

Prefect calls these hooks once the flow itself has ended: for a deployment in a process of its own,
in which no lock is held any more, for a flow within another in that one's process. A flow that dies
in any other way leaves its training job running, for the next one to pick up.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State

from configs.rundir import RunDir
from configs.schema import RunConfig
from flows.locks import is_held_elsewhere
from flows.session import config_of, tracked
from tasks.evaluate.task import cancel_evaluations
from tasks.recover.task import cancel_check
from tasks.train.task import cancel_attempt


def end_training(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Prefect's hook: end the job of the newest attempt, and say in its record why; or the check of its
    nodes."""
    del flow, state
    config = _config(flow_run)
    run = RunDir(config.resolved_run_dir())
    if run.attempts() and not is_held_elsewhere(run, "pretrain"):
        with tracked(run, config), ExitStack() as stack:
            stack.callback(cancel_check, config)  # Also when the attempt's job cannot be ended.
            cancel_attempt(config, why="the flow run was cancelled")


def end_evaluations(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Prefect's hook: end the evaluation jobs that still run."""
    del flow, state
    config = _config(flow_run)
    if not is_held_elsewhere(RunDir(config.resolved_run_dir()), "evaluate"):
        cancel_evaluations(config)


def _config(flow_run: FlowRun) -> RunConfig:
    """Of a flow run that was given a config or, like `evaluate`, a run directory."""
    if "run_dir" in flow_run.parameters:
        return config_of(Path(flow_run.parameters["run_dir"]))
    return RunConfig.model_validate(flow_run.parameters["config"])
