"""What an evaluation asks the model: the plan's types, and reading it.

Reads, in `evaluations/step_N/`, `config.json` (an EvaluateConfig, written by the flow) and `plan.json`
(made by :mod:`tasks.evaluate.planning`). Imports no lm-eval, so a flow and a check take milliseconds.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from pydantic import Field

from configs.errors import EvaluationError
from configs.files import sha256_of_json
from configs.node import node_name
from configs.records import Record
from configs.rundir import EvaluationDir, read_record
from configs.schema import EvaluateConfig
from tasks.evaluate import versions
from tasks.evaluate.model_folder import model_identity
from tasks.evaluate.schedule_types import Worker
from tasks.evaluate.task_files import files_below

# What decides when and where an evaluation runs, not what it asks or how the model answers.
_SCHEDULING_KEYS = {
    "enabled",
    "every_nth",
    "order",
    "most_waiting",
    "regressions",
    "timeout_s",
    "nodes",
    "stage_mib_per_s",
    "scorers",
    "code_timeout_s",
    "code_memory_gib",
    "code_sandbox",
}


class ShardPlan(Record):
    """Requests of one type and of whole documents that one worker answers together."""

    name: str
    """responses/NAME.jsonl holds its responses."""
    request_type: str
    start: int
    """Position of its first row in the task's requests file."""
    stop: int
    """Position after its last row."""
    start_bytes: int
    """Where its rows lie in that file."""
    stop_bytes: int
    responses: int
    """How many there are when it is done: a request is answered as often as it repeats."""
    expected_s: float = 0.0
    worker: str = ""
    """The one it is meant for; any other may take it."""


class TaskPlan(Record):
    """One task's requests."""

    task: str
    target: str
    """What it was asked for by: itself, a group or a tag."""
    file: str
    """Name of its files in requests/ and documents/."""
    documents: int
    requests: int
    num_fewshot: int
    requests_sha256: str
    """Over the hashes of all requests, in lm-eval's order."""
    documents_kept: bool = False
    """Whether documents/ holds its documents."""
    runs_code: bool = False
    """Whether scoring runs what the model has written."""
    metric_s: float = 0.0
    """How long its scoring is expected to take."""
    shards: list[ShardPlan]


class Answering(Record):
    """How the model is run: other settings may give other answers."""

    backend: str
    device: str
    """cpu or cuda."""
    dtype: str
    batch_size: int
    cpu_threads: int
    lm_eval_version: str
    versions: dict[str, str] = Field(default_factory=dict)
    """Of the packages that the backend answers with."""

    def sha_values(self) -> dict[str, Any]:
        """What of it goes into shards' names. Plans from before versions were kept have none."""
        return self.model_dump(mode="json", exclude=None if self.versions else {"versions"})

    def without_versions(self) -> Answering:
        """What the config says of it."""
        return self.model_copy(update={"lm_eval_version": "", "versions": {}})


class EvaluationPlan(Record):
    """plan.json: all requests of one checkpoint's evaluation."""

    step: int
    checkpoint: str = ""
    """SHA-256 of the commit marker of the checkpoint whose export is asked."""
    model_sha256: str
    """Which model it is; see model_folder.model_identity."""
    inputs_sha256: str
    """Over the config, the task files, the model folder and the packages' versions: others need another
    plan."""
    targets: list[str]
    """Tasks, groups and tags that were asked for and have documents."""
    left_out: dict[str, str]
    """Asked for, but not run -> why."""
    tasks: list[TaskPlan]
    order: list[str]
    """Shards in the order in which they are taken."""
    limit: int | None
    num_fewshot: int | None
    answering: Answering
    bootstrap_iterations: int
    seeds: dict[str, int]

    @functools.cached_property
    def _sha256(self) -> str:
        return sha256_of_json(self.model_dump(mode="json"))

    def sha256(self) -> str:
        """Hash of all of it."""
        return self._sha256

    def tasks_of(self, target: str) -> list[TaskPlan]:
        """The tasks of a target."""
        return [task for task in self.tasks if task.target == target]

    def shards_of(self, target: str) -> list[ShardPlan]:
        """The shards of a target's tasks."""
        return [shard for task in self.tasks_of(target) for shard in task.shards]

    def shards(self) -> list[tuple[TaskPlan, ShardPlan]]:
        """All shards, with the task of each."""
        return [(task, shard) for task in self.tasks for shard in task.shards]


def read_plan(evaluation: EvaluationDir) -> EvaluationPlan:
    """The evaluation's plan; EvaluationError when there is none."""
    plan = read_record(evaluation.plan_path, EvaluationPlan)
    if plan is None:
        raise EvaluationError(
            f"{evaluation.plan_path} is missing or is no plan: run inference first"
        )
    return plan


def current_plan(config: EvaluateConfig, evaluation: EvaluationDir) -> EvaluationPlan | None:
    """The plan that is there, if it was made for this config and this model, and answered by the packages
    that are installed."""
    plan = read_record(evaluation.plan_path, EvaluationPlan)
    if plan is None or plan.inputs_sha256 != inputs_sha256(config, evaluation):
        return None
    return plan


def inputs_sha256(
    config: EvaluateConfig,
    evaluation: EvaluationDir,
    model_sha256: str | None = None,
    answering: Answering | None = None,
) -> str:
    """Hash of the config, of the users' task files, of which model it is, and of what answers: by default,
    the model that is there, and the packages that are installed."""
    values = config.model_dump(mode="json", exclude=_SCHEDULING_KEYS)
    folders = [
        [_version(path) for path in files_below(folder) if path.is_file()]
        for folder in config.task_dirs
    ]
    answering = answering or answering_of(config)
    packages = [answering.lm_eval_version, answering.versions]
    return sha256_of_json([values, folders, model_sha256 or model_identity(evaluation), packages])


def _version(path: Path) -> list[str | int]:
    status = path.stat()
    return [str(path), status.st_size, status.st_mtime_ns]


def answering_of(config: EvaluateConfig) -> Answering:
    """How the config has the model run, with the packages that are installed."""
    on_gpu = bool(devices_of(config))
    return Answering(
        backend=config.backend,
        device="cuda" if on_gpu else "cpu",
        dtype=config.dtype or ("auto" if on_gpu else "float32"),
        batch_size=config.batch_size,
        cpu_threads=config.cpu_threads,
        lm_eval_version=versions.harness_version(),
        versions=versions.versions_of(config.backend),
    )


def devices_of(config: EvaluateConfig) -> list[int]:
    """The GPUs that the model runs on; empty: the CPU."""
    if config.cuda_devices:
        return config.cuda_devices
    return [] if config.cuda_device is None else [config.cuda_device]


def worker_names(config: EvaluateConfig) -> list[str]:
    """One on each GPU, or as many as the config says on the CPU."""
    devices = devices_of(config)
    if devices:
        return [f"gpu{device}" for device in devices]
    return [f"cpu{number}" for number in range(config.workers)]


def planned_workers(config: EvaluateConfig, *, here: bool = True) -> dict[str, Worker]:
    """What the first plan calls them -> who they are: this node's, if inference is `here`, and one for
    each that may come."""
    mine, node = worker_names(config), node_name()
    found = {name: Worker(name_on_node(name), node) for name in mine} if here else {}
    for number in range(2 if here else 1, config.nodes + 1):
        others = [f"{name}@{number}" for name in mine]  # their nodes are not known yet
        found |= {name: Worker(name, "") for name in others}
    return found


def name_on_node(worker: str) -> str:
    """The name of this node's worker among those of all nodes."""
    return f"{node_name()}-{worker}"


def config_of(evaluation: EvaluationDir) -> EvaluateConfig:
    """The config that the flow wrote beside the plan."""
    try:
        return EvaluateConfig.model_validate_json(evaluation.config_path.read_bytes())
    except (FileNotFoundError, ValueError) as error:
        raise EvaluationError(
            f"{evaluation.config_path} is missing or is no evaluation config"
        ) from error
