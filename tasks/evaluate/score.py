"""Scores recorded responses: responses -> scores.json. Needs neither the model nor torch.

    python -m tasks.evaluate.score RUN_DIR STEP

Reads, in `evaluations/step_N/`, `plan.json`, `tasks/`, `responses/` and `infer.json`. Writes
`scores.json`, last. The values are those of lm-eval's `simple_evaluate` on the same responses: its
`evaluate`, run target by target with a model that replays them. (`simple_evaluate` itself would also
describe the machine, which imports torch wherever that is installed.)
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from configs.errors import EvaluationError
from configs.files import sha256_of_json
from configs.records import EvaluationScores, ExportRecord, Score
from configs.rundir import EvaluationDir, RunDir, read_record, write_record
from tasks.evaluate.command import run_command
from tasks.evaluate.enumeration import Target, load_targets, one_line
from tasks.evaluate.harness import evaluate
from tasks.evaluate.plan import EvaluationPlan, read_plan
from tasks.evaluate.replay import ReplayLM
from tasks.evaluate.responses import read_responses, read_timings


def score(evaluation: EvaluationDir) -> EvaluationScores:
    """Score the evaluation and write scores.json."""
    start, started_at = time.perf_counter(), time.time()
    plan = read_plan(evaluation)
    responses = read_responses(evaluation, plan)
    scores: list[Score] = []
    answered: set[str] = set()
    for target in load_targets(evaluation.tasks_dir, plan.targets, plan.num_fewshot):
        replay = ReplayLM(row for row in responses.values() if row.key[0] in target.tasks)
        results = _evaluate(replay, target, plan)
        replay.check_all_used()
        answered |= target.tasks.keys()
        for name, metrics in results.items():
            scores += _rows(name, metrics)
    planned = [task.task for task in plan.tasks]
    if answered != set(planned):
        raise EvaluationError(
            f"{evaluation.tasks_dir} holds other tasks than the plan: {sorted(answered ^ set(planned))}"
        )
    timings = read_timings(evaluation)
    export = read_record(evaluation.export_path, ExportRecord)
    first = export or timings
    record = EvaluationScores(
        step=evaluation.step,
        scores=scores,
        tasks=planned,
        checkpoint=plan.checkpoint,
        plan_sha256=sha256_of_json(plan.model_dump(mode="json")),
        export_s=export.ended_at - export.started_at if export else 0.0,
        infer_s=timings.total_s if timings else 0.0,
        score_s=time.perf_counter() - start,
        started_at=first.started_at if first else started_at,
        ended_at=time.time(),
    )
    write_record(evaluation.scores_path, record)
    return record


def _evaluate(replay: ReplayLM, target: Target, plan: EvaluationPlan) -> dict[str, dict[str, Any]]:
    """Task or group -> lm-eval's metrics."""
    try:
        results = evaluate(
            lm=replay,
            task_dict=target.task_dict,
            limit=plan.limit,
            bootstrap_iters=plan.bootstrap_iterations,
            log_samples=False,
        )
    except EvaluationError:
        raise
    except Exception as error:
        raise EvaluationError(
            f"evaluation task {target.name!r} cannot be scored: {one_line(error)}"
        ) from error
    metrics: dict[str, dict[str, Any]] = results["results"]
    return metrics


def _rows(task: str, metrics: Mapping[str, Any]) -> Iterator[Score]:
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
        )


def _stderr_key(key: str) -> str:
    metric, _, filter_name = key.partition(",")
    return f"{metric}_stderr,{filter_name}"


def _number(value: Any) -> float | None:
    """A Python float of lm-eval's or numpy's number; None for anything else (`N/A`, lists)."""
    return float(value) if hasattr(value, "__float__") else None


def _main(run_dir: Path, step: int) -> None:
    record = score(RunDir(run_dir).evaluation(step))
    for row in record.scores:
        print(f"{row.task} {row.metric} {row.value:.4f}")


if __name__ == "__main__":
    sys.exit(run_command("tasks.evaluate.score", _main))
