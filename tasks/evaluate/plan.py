"""What an evaluation asks the model: the plan's types, reading it, and checking the config before a run.

Reads, in `evaluations/step_N/`, `config.json` (an EvaluateConfig, written by the flow) and `plan.json`
(made by :mod:`tasks.evaluate.planning`). Imports no lm-eval, so a flow and a check take milliseconds.
"""

from __future__ import annotations

from configs.errors import ConfigError, EvaluationError
from configs.files import sha256_of_json
from configs.records import Record
from configs.rundir import EvaluationDir, read_record
from configs.schema import EvaluateConfig
from tasks.evaluate.catalog import build_catalog
from tasks.evaluate.render import check_entry

# What decides when and where an evaluation runs, not what it asks.
_SCHEDULING_KEYS = {"enabled", "every_nth", "timeout_s"}


class ShardPlan(Record):
    """A slice of a task's requests that one process runs; documents are never cut."""

    name: str
    """responses/NAME.jsonl holds its responses."""
    start: int
    """Position of its first request in the task."""
    stop: int
    """Position after its last request."""


class TaskPlan(Record):
    """One task's requests."""

    task: str
    documents: int
    requests: int
    num_fewshot: int
    requests_sha256: str
    """Over the hashes of all requests, in order."""
    shards: list[ShardPlan]


class EvaluationPlan(Record):
    """plan.json: all requests of one checkpoint's evaluation."""

    step: int
    checkpoint: str = ""
    """SHA-256 of the commit marker of the checkpoint whose export is asked."""
    inputs_sha256: str
    """Over the config and the model folder: another one needs another plan."""
    targets: list[str]
    """Tasks, groups and tags that were asked for and have documents."""
    left_out: dict[str, str]
    """Asked for, but not run -> why."""
    tasks: list[TaskPlan]
    limit: int | None
    num_fewshot: int | None
    batch_size: int
    bootstrap_iterations: int
    seeds: dict[str, int]
    lm_eval_version: str

    def shards(self) -> list[tuple[TaskPlan, ShardPlan]]:
        """All shards, with the task of each."""
        return [(task, shard) for task in self.tasks for shard in task.shards]


def check_tasks(config: EvaluateConfig) -> None:
    """Raise ConfigError when the config names a task that does not exist or cannot run here."""
    if not config.tasks:
        raise ConfigError(
            "evaluate.tasks is empty: name at least one task, or set evaluate.enabled to false"
        )
    for entry in build_catalog(config.task_dirs).select(config.tasks):
        check_entry(entry)


def read_plan(evaluation: EvaluationDir) -> EvaluationPlan:
    """The evaluation's plan; EvaluationError when there is none."""
    plan = read_record(evaluation.plan_path, EvaluationPlan)
    if plan is None:
        raise EvaluationError(
            f"{evaluation.plan_path} is missing or is no plan: run inference first"
        )
    return plan


def current_plan(config: EvaluateConfig, evaluation: EvaluationDir) -> EvaluationPlan | None:
    """The plan that is there, if it was made for this config and this model."""
    plan = read_record(evaluation.plan_path, EvaluationPlan)
    if plan is None or plan.inputs_sha256 != inputs_sha256(config, evaluation):
        return None
    return plan


def inputs_sha256(config: EvaluateConfig, evaluation: EvaluationDir) -> str:
    """Hash of the config and of the model files' names, sizes and times."""
    files = sorted(path for path in evaluation.model_dir.rglob("*") if path.is_file())
    model = [
        [str(path.relative_to(evaluation.model_dir)), path.stat().st_size, path.stat().st_mtime_ns]
        for path in files
    ]
    return sha256_of_json([config.model_dump(mode="json", exclude=_SCHEDULING_KEYS), model])


def config_of(evaluation: EvaluationDir) -> EvaluateConfig:
    """The config that the flow wrote beside the plan."""
    try:
        return EvaluateConfig.model_validate_json(evaluation.config_path.read_bytes())
    except (FileNotFoundError, ValueError) as error:
        raise EvaluationError(
            f"{evaluation.config_path} is missing or is no evaluation config"
        ) from error
