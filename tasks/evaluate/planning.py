"""Makes an evaluation's plan: renders its tasks, enumerates their requests, writes plan.json.

Reads the held-out documents and the users' task files. Writes, in `evaluations/step_N/`, `tasks/*.yaml`
as lm-eval runs them and, last, `plan.json`, so that every later process asks exactly the same.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from configs.errors import ConfigError, EvaluationError
from configs.records import ExportRecord
from configs.rundir import EvaluationDir, read_record, write_record
from configs.schema import EvaluateConfig
from tasks.evaluate.catalog import Catalog, build_catalog, file_name
from tasks.evaluate.enumeration import (
    SEEDS,
    Requests,
    Target,
    enumerate_requests,
    load_targets,
    requests_sha256,
)
from tasks.evaluate.harness import LM_EVAL_VERSION
from tasks.evaluate.plan import EvaluationPlan, ShardPlan, TaskPlan, inputs_sha256
from tasks.evaluate.render import check_entry, heldout_file, render

_DATASETS_CACHE = "datasets_cache"


def make_plan(
    config: EvaluateConfig, evaluation: EvaluationDir, heldout_dir: Path
) -> EvaluationPlan:
    """Render the tasks, enumerate their requests and write plan.json."""
    plan, _ = plan_and_requests(config, evaluation, heldout_dir)
    return plan


def plan_and_requests(
    config: EvaluateConfig, evaluation: EvaluationDir, heldout_dir: Path
) -> tuple[EvaluationPlan, Requests]:
    """Make the plan anew; what an earlier plan has left behind is removed first."""
    evaluation.plan_path.unlink(missing_ok=True)
    export = read_record(evaluation.export_path, ExportRecord)
    for folder in (evaluation.tasks_dir, evaluation.responses_dir):
        if folder.exists():
            shutil.rmtree(folder)
    targets, left_out = _render_targets(config, evaluation, heldout_dir)
    tasks: list[TaskPlan] = []
    requests: Requests = {}
    for target in load_targets(evaluation.tasks_dir, targets, config.num_fewshot):
        enumerated = enumerate_requests(target, config.limit)
        _refuse_twice(enumerated.keys() & requests.keys())
        requests |= enumerated
        tasks += _plan_tasks(target, enumerated, first_number=len(tasks))
    plan = EvaluationPlan(
        step=evaluation.step,
        checkpoint=export.checkpoint if export is not None else "",
        inputs_sha256=inputs_sha256(config, evaluation),
        targets=targets,
        left_out=left_out,
        tasks=tasks,
        limit=config.limit,
        num_fewshot=config.num_fewshot,
        batch_size=config.batch_size,
        bootstrap_iterations=config.bootstrap_iterations,
        seeds=SEEDS,
        lm_eval_version=LM_EVAL_VERSION,
    )
    write_record(evaluation.plan_path, plan)
    return plan, requests


def _render_targets(
    config: EvaluateConfig, evaluation: EvaluationDir, heldout_dir: Path
) -> tuple[list[str], dict[str, str]]:
    try:
        catalog = build_catalog(config.task_dirs)
        left_out = _without_documents(catalog, config.tasks, heldout_dir)
        targets = [name for name in config.tasks if name not in left_out]
        entries = catalog.select(targets)
        for entry in entries:
            check_entry(entry)
    except ConfigError as error:
        raise EvaluationError(str(error)) from error
    for name, reason in left_out.items():
        print(f"evaluation task {name} is left out: {reason}", file=sys.stderr, flush=True)
    if not targets:
        raise EvaluationError("no evaluation task has a document: there is nothing to evaluate")
    cache_dir = evaluation.path.parent / _DATASETS_CACHE
    render(entries, evaluation.tasks_dir, heldout_dir, cache_dir)
    return targets, left_out


def _without_documents(catalog: Catalog, names: list[str], heldout_dir: Path) -> dict[str, str]:
    """Those of Overland's own tasks for which the held-out text gave no documents."""
    left_out: dict[str, str] = {}
    for name in names:
        entry = catalog.entry(name)
        if entry is None or not entry.is_own:
            continue
        path = heldout_file(entry, heldout_dir)
        if not path.is_file():
            raise EvaluationError(
                f"evaluation task {name!r}: {path} is missing, which data preparation writes"
            )
        with open(path, "rb") as file:
            if not any(line.strip() for line in file):
                left_out[name] = f"{path} has no documents"
    return left_out


def _plan_tasks(target: Target, enumerated: Requests, first_number: int) -> list[TaskPlan]:
    plans = []
    for number, (name, requests) in enumerate(enumerated.items(), start=first_number):
        shard = ShardPlan(name=file_name(number, name), start=0, stop=len(requests))
        plan = TaskPlan(
            task=name,
            documents=len({request.doc_id for request in requests}),
            requests=len(requests),
            num_fewshot=target.tasks[name].get_config("num_fewshot"),
            requests_sha256=requests_sha256(requests),
            shards=[shard],
        )
        plans.append(plan)
    return plans


def _refuse_twice(tasks: set[str]) -> None:
    if tasks:
        raise EvaluationError(
            f"evaluation task {min(tasks)!r} is in two of evaluate.tasks: name one of the two"
        )
