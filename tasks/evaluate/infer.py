"""Asks the model: an exported checkpoint -> recorded responses, in one process that loads it once.

    python -m tasks.evaluate.infer RUN_DIR STEP

Reads, in `evaluations/step_N/`, `config.json`, `model/` and, when it is there and still fits them,
`plan.json`; else it makes the plan. Writes `responses/SHARD.jsonl`, a shard at a time, and
`infer.json`. Shards that are done are not run again.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.errors import EvaluationError
from configs.rundir import EvaluationDir, RunDir, write_record
from tasks.evaluate.command import run_command
from tasks.evaluate.enumeration import (
    SEEDS,
    Requests,
    enumerate_requests,
    load_targets,
    request_key,
    request_sha256,
    requests_sha256,
)
from tasks.evaluate.harness import Instance
from tasks.evaluate.plan import EvaluationPlan, ShardPlan, TaskPlan, config_of, current_plan
from tasks.evaluate.planning import plan_and_requests
from tasks.evaluate.responses import (
    InferenceTimings,
    read_timings,
    shard_path,
    timings_path,
    write_shard,
)


def infer(evaluation: EvaluationDir, heldout_dir: Path) -> None:
    """Run every shard of the evaluation that is not done yet."""
    started_at = time.time()
    if not (evaluation.model_dir / "config.json").is_file():
        raise EvaluationError(f"{evaluation.model_dir} is no exported model: export it first")
    config = config_of(evaluation)
    plan = current_plan(config, evaluation)
    if plan is not None and not _pending(evaluation, plan):
        return _say("all shards are done")
    if plan is None:
        timings_path(evaluation).unlink(missing_ok=True)
        plan, requests = plan_and_requests(config, evaluation, heldout_dir)
    else:
        requests = _requests_of(plan, evaluation)
    for leftover in evaluation.responses_dir.glob(".*.tmp"):
        leftover.unlink()
    timings = read_timings(evaluation) or InferenceTimings(started_at=started_at, shards={})
    _run_shards(evaluation, plan, requests, timings)


def _run_shards(
    evaluation: EvaluationDir, plan: EvaluationPlan, requests: Requests, timings: InferenceTimings
) -> None:
    start = time.perf_counter()
    model = load_model(evaluation.model_dir, plan.batch_size)
    load_s = time.perf_counter() - start
    timings = timings.model_copy(update={"load_s": timings.load_s + load_s})
    _say(f"model loaded in {load_s:.1f} s")
    for task, shard in _pending(evaluation, plan):
        start = time.perf_counter()
        rows = ask(model, requests[task.task][shard.start : shard.stop])
        write_shard(shard_path(evaluation, shard.name), rows)
        shard_s = time.perf_counter() - start
        timings = timings.model_copy(update={"shards": {**timings.shards, shard.name: shard_s}})
        write_record(timings_path(evaluation), timings)
        _say(f"{task.task}: {len(rows)} responses in {shard_s:.1f} s")


def load_model(model_dir: Path, batch_size: int) -> Any:
    """The exported model behind lm-eval's interface: on the GPU if there is one, else in fp32."""
    with _collector_paused():
        # Torch and transformers take seconds to import: only a process that has work pays for them.
        import torch
        from lm_eval.models.huggingface import HFLM

        has_gpu = torch.cuda.is_available()
        return HFLM(
            pretrained=str(model_dir),
            device="cuda" if has_gpu else "cpu",
            dtype="auto" if has_gpu else "float32",
            batch_size=batch_size,
        )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Imports make objects that stay; walking them over and over costs a fifth of the start-up."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def ask(model: Any, requests: list[Instance]) -> list[dict[str, Any]]:
    """The model's responses as rows of a shard's file; each request as often as its task repeats it."""
    import torch

    torch.manual_seed(SEEDS["torch"])
    by_type: dict[str, list[tuple[Instance, int]]] = {}
    for request in requests:
        repeated = [(request, repeat) for repeat in range(request.repeats)]
        by_type.setdefault(request.request_type, []).extend(repeated)
    rows = []
    for request_type, asked in by_type.items():
        responses = getattr(model, request_type)([request for request, _ in asked])
        for (request, repeat), response in zip(asked, responses, strict=True):
            key, prompt_sha256 = request_key(request, repeat), request_sha256(request)
            rows.append({"key": key, "prompt_sha256": prompt_sha256, "response": response})
    return rows


def _requests_of(plan: EvaluationPlan, evaluation: EvaluationDir) -> Requests:
    """Enumerate again what the plan holds; EvaluationError when the prompts are no longer the same."""
    requests: Requests = {}
    for target in load_targets(evaluation.tasks_dir, plan.targets, plan.num_fewshot):
        requests |= enumerate_requests(target, plan.limit)
    for task in plan.tasks:
        if requests_sha256(requests.get(task.task, [])) != task.requests_sha256:
            raise EvaluationError(
                f"evaluation task {task.task!r} has other prompts than when it was planned: its data or "
                f"its YAML has changed since; remove {evaluation.plan_path} to start it anew"
            )
    return requests


def _pending(evaluation: EvaluationDir, plan: EvaluationPlan) -> list[tuple[TaskPlan, ShardPlan]]:
    return [
        (task, shard)
        for task, shard in plan.shards()
        if not shard_path(evaluation, shard.name).is_file()
    ]


def _say(text: str) -> None:
    print(text, flush=True)


def _main(run_dir: Path, step: int) -> None:
    run = RunDir(run_dir)
    infer(run.evaluation(step), run.heldout_dir)


if __name__ == "__main__":
    sys.exit(run_command("tasks.evaluate.infer", _main))
