"""Scores one target, a task or a group: its recorded responses -> lm-eval's metrics.

The values are those of lm-eval's `simple_evaluate` on the same responses: its `evaluate`, with a model
that replays them. (`simple_evaluate` itself would also describe the machine, which imports torch
wherever that is installed.)
"""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from configs.errors import EvaluationError
from configs.records import Record, Score
from configs.rundir import EvaluationDir, read_record, write_record
from tasks.evaluate.catalog import file_name
from tasks.evaluate.enumeration import Target, load_targets, one_line, pin_documents
from tasks.evaluate.given_up import why_given_up
from tasks.evaluate.harness import evaluate
from tasks.evaluate.manifest import documents_path, read_documents
from tasks.evaluate.metric_types import without_score
from tasks.evaluate.plan import EvaluationPlan, read_plan
from tasks.evaluate.replay import ReplayLM
from tasks.evaluate.resampling import own_resampling
from tasks.evaluate.responses import read_responses
from tasks.evaluate.sandbox import SandboxError
from tasks.evaluate.times import Done, record

Metrics = dict[str, dict[str, Any]]
"""Task or group -> lm-eval's metrics."""
Prepare = Callable[[Target], None]


class _Results(TypedDict):
    """What lm-eval says of a target."""

    metrics: Metrics
    higher_is_better: dict[str, dict[str, bool | None]]
    """Task or group -> metric, without its filter."""


class TargetError(EvaluationError):
    """This target cannot be scored; others can."""


class TargetScores(Record):
    """scores/NNN_TARGET.json: what one target has scored."""

    target: str
    plan_sha256: str
    scores: list[Score]
    score_s: float
    failure: str | None = None
    """Why it has no scores, or not all: its own fault, not that of the recorded responses."""


def target_path(evaluation: EvaluationDir, plan: EvaluationPlan, target: str) -> Path:
    """The file with a target's scores."""
    name = file_name(plan.targets.index(target), target)
    return evaluation.target_scores_dir / f"{name}.json"


def read_target(
    evaluation: EvaluationDir, plan: EvaluationPlan, target: str
) -> TargetScores | None:
    """The target's scores, if they are of this plan."""
    found = read_record(target_path(evaluation, plan, target), TargetScores)
    return found if found is not None and found.plan_sha256 == plan.sha256() else None


def _as_it_is(target: Target) -> None:
    """Change nothing of it."""


def error_path(evaluation: EvaluationDir, plan: EvaluationPlan, target: str) -> Path:
    """The file that says why nothing can be scored."""
    return target_path(evaluation, plan, target).with_suffix(".error")


def attempt(
    evaluation: EvaluationDir, plan: EvaluationPlan, target: str, prepare: Prepare = _as_it_is
) -> None:
    """Score the target; an error goes to the log, and its sentence to a file."""
    try:
        score_target(evaluation, plan, target, prepare)
    except BaseException as error:
        if not isinstance(error, EvaluationError) or error.__cause__ is not None:
            traceback.print_exc()
        path = error_path(evaluation, plan, target)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{error}" if isinstance(error, EvaluationError) else repr(error))


def score_target(
    evaluation: EvaluationDir, plan: EvaluationPlan, name: str, prepare: Prepare = _as_it_is
) -> TargetScores:
    """Score the target and write its file. `prepare` may change its tasks before."""
    started_at = time.time()
    scores: list[Score] = []
    failure = None
    try:
        if (said := why_given_up(evaluation, plan.shards_of(name))) is not None:
            raise TargetError(said)
        target, replay = _load(evaluation, plan, name)
        prepare(target)
        results = _evaluate(target, replay, plan)
        scores = [
            score
            for task, values in results["metrics"].items()
            for score in _scores(task, values, results["higher_is_better"].get(task, {}))
        ]
        failure = missing_scores(target, results["metrics"], scores)
    except (SandboxError, TargetError) as error:
        if error.__cause__ is not None:
            traceback.print_exception(error)
        failure = str(error)
    ended_at = time.time()
    result = TargetScores(
        target=name,
        plan_sha256=plan.sha256(),
        scores=scores,
        score_s=ended_at - started_at,
        failure=failure,
    )
    if read_plan(evaluation).sha256() != plan.sha256():
        raise EvaluationError("the plan was made anew while it was scored: score again")
    write_record(target_path(evaluation, plan, name), result)
    done = Done(kind="score", name=name, worker="scorer", started_at=started_at, ended_at=ended_at)
    record(evaluation, done)
    return result


def _load(evaluation: EvaluationDir, plan: EvaluationPlan, name: str) -> tuple[Target, ReplayLM]:
    planned = plan.tasks_of(name)
    names = [task.task for task in planned]
    responses = read_responses(evaluation, plan, names)
    (target,) = load_targets(evaluation.tasks_dir, [name], plan.num_fewshot)
    if set(target.tasks) != set(names):
        raise EvaluationError(
            f"{evaluation.tasks_dir} holds other tasks than the plan: "
            f"{sorted(set(target.tasks) ^ set(names))}"
        )
    for task in planned:
        if task.documents_kept:
            documents = read_documents(documents_path(evaluation, task.file))
            pin_documents(target.tasks[task.task], list(documents))
    return target, ReplayLM(responses.values())


def _evaluate(target: Target, replay: ReplayLM, plan: EvaluationPlan) -> _Results:
    try:
        with own_resampling():
            results = evaluate(
                lm=replay,
                task_dict=target.task_dict,
                limit=plan.limit,
                bootstrap_iters=plan.bootstrap_iterations,
                log_samples=False,
                confirm_run_unsafe_code=True,
            )
    except EvaluationError:
        raise
    except Exception as error:
        raise TargetError(
            f"evaluation task {target.name!r} cannot be scored: {one_line(error)}"
        ) from error
    replay.check_all_used()
    return {"metrics": results["results"], "higher_is_better": results["higher_is_better"]}


def _scores(
    task: str, metrics: Mapping[str, Any], higher_is_better: Mapping[str, bool | None]
) -> Iterator[Score]:
    """lm-eval's flat results (`acc,none`, `acc_stderr,none`, `alias`, ...) as scores."""
    stderr_keys = {key: _stderr_key(key) for key in metrics if "," in key}
    for key, stderr_key in stderr_keys.items():
        if key in stderr_keys.values():
            continue
        value = _number(metrics[key])
        if value is None:
            print(f"{task}: {key} is left out, it is no number: {metrics[key]!r}", file=sys.stderr)
            continue
        stderr = _number(metrics.get(stderr_key))
        yield Score(
            task=task,
            metric=key,
            value=value,
            stderr=None if stderr is None or math.isnan(stderr) else stderr,
            samples=metrics.get("sample_len", 0),
            higher_is_better=higher_is_better.get(key.partition(",")[0]),
        )


def missing_scores(target: Target, results: Metrics, scores: Sequence[Score]) -> str | None:
    """What is said when a metric that was asked for has come to nothing, or all of them have."""
    for name, task in target.tasks.items():
        scored = {_metric_of(score.metric) for score in scores if score.task == name}
        seen = {_metric_of(key) for key in results.get(name, {})}
        if missing := [*without_score(task, scored, seen - scored)]:
            metrics = " and ".join(repr(metric) for metric in missing)
            return (
                f"evaluation task {name!r} has no score of metric {metrics}: nothing that it computes "
                f"is a number of this name; it has {', '.join(sorted(scored)) or 'none'}"
            )
    return (
        None if scores else f"evaluation task {target.name!r} gives no score: see its metric_list"
    )


def _metric_of(key: str) -> str:
    """lm-eval's `acc,none`, without the filter."""
    return key.rpartition(",")[0] or key


def _stderr_key(key: str) -> str:
    metric, _, filter_name = key.partition(",")
    return f"{metric}_stderr,{filter_name}"


def _number(value: Any) -> float | None:
    """A Python float of lm-eval's or numpy's number; None for anything else (`N/A`, lists)."""
    return float(value) if hasattr(value, "__float__") else None
