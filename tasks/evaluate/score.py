"""Scores recorded responses: responses -> scores.json. Needs neither the model nor torch.

    python -m tasks.evaluate.score RUN_DIR STEP [--follow | --anew]
    python -m tasks.evaluate.score EVALUATION_DIR [--follow | --anew]

Reads, in `evaluations/step_N/`, `plan.json`, `tasks/`, `documents/` and `responses/`. Each target is
scored in a process of its own, which leaves `scores/NNN_TARGET.json`; those that are there are not
scored again. Writes `scores.json`, last. With `--follow`, it waits for the plan and for responses, and
scores each target as soon as its last shard lands, those with long metrics first. With `--anew`, it
scores what is there by the tasks' files as they are now.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from configs.errors import EvaluationError
from configs.records import EvaluationScores, ExportRecord
from configs.rundir import EvaluationDir, read_record, write_record
from tasks.evaluate import sandbox_kernel as kernel
from tasks.evaluate.command import run_command
from tasks.evaluate.cutting import by_type, counts_of
from tasks.evaluate.forecast import PartTimes, remember
from tasks.evaluate.holding import alone_at_work, at_work
from tasks.evaluate.manifest import read_requests, requests_path
from tasks.evaluate.plan import EvaluationPlan, config_of, read_plan
from tasks.evaluate.plan_wait import await_plan
from tasks.evaluate.planning import plan_anew
from tasks.evaluate.responses import Pending, refuse_foreign
from tasks.evaluate.sandbox import clean_environment
from tasks.evaluate.score_target import (
    TargetScores,
    attempt,
    error_path,
    read_target,
    target_path,
)
from tasks.evaluate.shards import TaskRows
from tasks.evaluate.times import Done, covered_s, read_times

_LOOK_S = 0.05


def score(evaluation: EvaluationDir, *, follow: bool = False) -> EvaluationScores:
    """Score the evaluation and write scores.json."""
    config = config_of(evaluation)
    plan = await_plan(config, evaluation) if follow else read_plan(evaluation)
    waiting = [t for t in _in_order(plan) if _failure(evaluation, plan, t) != ""]
    pending = {target: Pending(evaluation, plan.shards_of(target)) for target in waiting}
    running: dict[int, str] = {}
    failed: list[str] = []
    while waiting or running:
        ready = [t for t in waiting if not (follow and pending[t])]
        for target in ready[: config.scorers - len(running)]:
            waiting.remove(target)
            running[_start(evaluation, plan, target)] = target
        for process in [p for p in running if os.waitpid(p, os.WNOHANG)[0]]:
            target = running.pop(process)
            if read_target(evaluation, plan, target) is None:
                failed.append(target)
        time.sleep(_LOOK_S)
    if failed:
        raise EvaluationError(_why(evaluation, plan, failed[0]))
    found = [read_target(evaluation, plan, target) for target in plan.targets]
    if failures := _all_failed(found):
        raise EvaluationError(failures[0])
    refuse_foreign(evaluation, plan)
    return _write_scores(evaluation, plan)


def _in_order(plan: EvaluationPlan) -> list[str]:
    """Targets, those whose metrics take longest first."""

    def length(target: str) -> tuple[float, bool, int]:
        tasks = plan.tasks_of(target)
        longest_s = sum(task.metric_s for task in tasks)
        runs_code = any(task.runs_code for task in tasks)
        return longest_s, runs_code, sum(task.requests for task in tasks)

    return sorted(plan.targets, key=length, reverse=True)


def _failure(evaluation: EvaluationDir, plan: EvaluationPlan, target: str) -> str | None:
    """Why the target cannot be scored; empty: it is scored; None: it was not tried."""
    found = read_target(evaluation, plan, target)
    return None if found is None else found.failure or ""


def _all_failed(targets: Sequence[TargetScores | None]) -> list[str]:
    """Why each has failed, if all have and none has a score."""
    failures = [t.failure for t in targets if t is not None and t.failure and not t.scores]
    return failures if len(failures) == len(targets) else []


def _start(evaluation: EvaluationDir, plan: EvaluationPlan, target: str) -> int:
    """Score the target in a new process, which has lm-eval imported already; returns its number."""
    error_path(evaluation, plan, target).unlink(missing_ok=True)
    target_path(evaluation, plan, target).unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    scorer = os.getpid()
    process = os.fork()
    if process:
        return process
    try:
        kernel.die_with_parent()
        if os.getppid() != scorer:
            os._exit(1)
        # lm-eval ends its own workers by SIGTERM; a handler of ours, inherited, could let them live.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if any(task.runs_code for task in plan.tasks_of(target)):
            where = [str(evaluation.path), str(evaluation.step), target, plan.sha256()]
            argv = [sys.executable, "-m", "tasks.evaluate.score_code", *where]
            os.execve(sys.executable, argv, clean_environment())  # noqa: S606
        attempt(evaluation, plan, target)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _why(evaluation: EvaluationDir, plan: EvaluationPlan, target: str) -> str:
    try:
        return error_path(evaluation, plan, target).read_text()
    except FileNotFoundError:
        return f"the process that scored evaluation task {target!r} was killed: run it again"


def _write_scores(evaluation: EvaluationDir, plan: EvaluationPlan) -> EvaluationScores:
    targets = [read_target(evaluation, plan, target) for target in plan.targets]
    times = read_times(evaluation)
    infer = [t for t in times if t.kind in ("load", "shard")]
    export = read_record(evaluation.export_path, ExportRecord)
    began = export.started_at if export else min((t.started_at for t in times), default=time.time())
    record = EvaluationScores(
        step=evaluation.step,
        scores=[row for scores in targets if scores is not None for row in scores.scores],
        failed={t.target: t.failure for t in targets if t is not None and t.failure},
        tasks=[task.task for task in plan.tasks],
        checkpoint=plan.checkpoint,
        plan_sha256=plan.sha256(),
        export_s=export.ended_at - export.started_at if export else 0.0,
        infer_s=covered_s(infer),
        score_s=covered_s([t for t in times if t.kind == "score"], beside=infer),
        started_at=began,
        ended_at=time.time(),
    )
    known = read_record(evaluation.scores_path, EvaluationScores)
    if known is None or known.plan_sha256 != record.plan_sha256:
        _remember(evaluation, plan, times)
    write_record(evaluation.scores_path, record)
    return record


def _remember(evaluation: EvaluationDir, plan: EvaluationPlan, times: list[Done]) -> None:
    """Have later plans know what this evaluation took."""
    score_s = {t.name: t.time_s for t in times if t.kind == "score"}
    parts = []
    for task in plan.tasks:
        rows = TaskRows(task.task, read_requests(requests_path(evaluation, task.file)), "")
        siblings = sum(t.documents for t in plan.tasks_of(task.target))
        for request_type, (name, of_type) in by_type(rows).items():
            shards = [s.name for s in task.shards if s.request_type == request_type]
            metric_s = score_s.get(task.target, 0.0) * task.documents / siblings
            parts.append(PartTimes(counts_of(name, of_type), task.target, shards, metric_s))
    remember(evaluation, plan.answering, parts, times)


def _main(argv: list[str]) -> int:
    flags = {flag for flag in ("--follow", "--anew") if flag in argv}

    def command(evaluation: EvaluationDir, heldout_dir: Path) -> None:
        with alone_at_work(evaluation) if "--anew" in flags else at_work(evaluation):
            if "--anew" in flags:
                plan_anew(config_of(evaluation), evaluation, heldout_dir)
            record = score(evaluation, follow="--follow" in flags)
        for row in record.scores:
            print(f"{row.task} {row.metric} {row.value:.4f}")
        for target, reason in record.failed.items():
            print(f"{target} lacks scores: {reason}")

    arguments = [argument for argument in argv if argument not in flags]
    return run_command("tasks.evaluate.score", command, arguments)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
