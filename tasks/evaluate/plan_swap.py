"""Puts a plan in its place once it is whole. Until then what was there before stays as it is.

A plan is made in a folder of its own, `.plan-*`, inside the evaluation's. A process that is killed at
any moment leaves the plan from before, the new one, or `plan_before.json` alone; and in each case every
response. scores.json stays until the new scores take its place: it says of which plan it is.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from configs.files import sync_directory
from configs.rundir import EvaluationDir, read_record, write_record
from tasks.evaluate.live_plan import LivePlan, live_plan_path
from tasks.evaluate.plan import EvaluationPlan
from tasks.evaluate.responses import shard_path, unused_dir

_PREFIX = ".plan-"


@dataclass(frozen=True)
class Draft:
    """A plan that is whole, and not in its place yet."""

    folder: EvaluationDir
    """Has its tasks/, requests/ and documents/."""
    plan: EvaluationPlan
    live: LivePlan | None
    """Who is to answer what; None when nothing is left to ask."""


@contextmanager
def draft_folder(evaluation: EvaluationDir) -> Iterator[EvaluationDir]:
    """A folder for a plan in the making, removed at the end. Only one process makes a plan at a time,
    so those of processes that were killed go first."""
    evaluation.path.mkdir(parents=True, exist_ok=True)
    for left in evaluation.path.glob(f"{_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=evaluation.path, prefix=_PREFIX) as folder:
        yield EvaluationDir(Path(folder), evaluation.step)


def plan_before(evaluation: EvaluationDir) -> EvaluationPlan | None:
    """The newest plan that was whole, also after a process was killed between two."""
    plan = read_record(evaluation.plan_path, EvaluationPlan)
    return plan or read_record(_before_path(evaluation), EvaluationPlan)


def swap_in(evaluation: EvaluationDir, draft: Draft) -> None:
    """Put the draft in the place of the plan that is there; plan.json comes last.

    Responses of the new plan stay or come back, others are put aside, where a later plan finds them.
    """
    if evaluation.plan_path.exists():
        evaluation.plan_path.replace(_before_path(evaluation))
    for path in (evaluation.claims_dir, evaluation.target_scores_dir):
        _remove(path)
    for new, old in (
        (draft.folder.tasks_dir, evaluation.tasks_dir),
        (draft.folder.requests_dir, evaluation.requests_dir),
        (draft.folder.documents_dir, evaluation.documents_dir),
    ):
        _remove(old)
        if new.exists():
            new.replace(old)
    if draft.live is not None:
        evaluation.inferred_path.unlink(missing_ok=True)
        write_record(live_plan_path(evaluation), draft.live)
    _put_aside_others(evaluation, draft.plan)
    sync_directory(evaluation.path)
    write_record(evaluation.plan_path, draft.plan)
    _before_path(evaluation).unlink(missing_ok=True)


def _before_path(evaluation: EvaluationDir) -> Path:
    return evaluation.path / "plan_before.json"


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _put_aside_others(evaluation: EvaluationDir, plan: EvaluationPlan) -> None:
    """Move responses in and out of `unused`, so that `responses/` holds the plan's shards only."""
    wanted = {shard_path(evaluation, shard.name) for _, shard in plan.shards()}
    unused = unused_dir(evaluation)
    for path in sorted(evaluation.responses_dir.glob("*.jsonl")):
        if path not in wanted:
            unused.mkdir(exist_ok=True)
            path.replace(unused / path.name)
    for path in wanted:
        aside = unused / path.name
        if aside.is_file():
            aside.replace(path)
