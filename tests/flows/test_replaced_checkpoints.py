"""A step that is saved again, after a fall back to an older checkpoint, is evaluated again."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from configs.files import write_text
from configs.load import load_config
from configs.records import EvaluationScores
from configs.rundir import COMMIT_MARKER_NAME, RunDir, write_record
from configs.schema import RunConfig
from flows import evaluate
from flows.evaluate import Following, due_steps, evaluate_as_committed
from tests.flows.helpers import tiny_config


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return load_config(tiny_config(tmp_path))


def save(run: RunDir, step: int, *, attempt: int) -> None:
    """Leave a commit marker, as far as anybody looks at it here."""
    folder = run.checkpoint(step).path
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / COMMIT_MARKER_NAME, f"attempt {attempt}")


def score(run: RunDir, step: int) -> None:
    identity = run.checkpoint(step).identity() or ""
    scores = EvaluationScores(step=step, scores=[], tasks=[], checkpoint=identity, plan_sha256="")
    write_record(run.evaluation(step).scores_path, scores)


def test_scores_of_a_checkpoint_that_was_replaced_do_not_count(config: RunConfig) -> None:
    run = RunDir(config.resolved_run_dir())
    for step in (4, 8):
        save(run, step, attempt=1)
        score(run, step)
    assert due_steps(config, run, training_over=True) == []
    save(run, 8, attempt=2)
    assert due_steps(config, run, training_over=True) == [8]


def test_a_checkpoint_that_is_replaced_while_it_is_evaluated_is_tried_again(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, tried = RunDir(config.resolved_run_dir()), []

    def evaluate_checkpoint(config: RunConfig, step: int, *_: object) -> None:
        tried.append(step)
        if len(tried) == 1:
            save(run, step, attempt=2)
        else:
            score(run, step)

    monkeypatch.setattr(evaluate, "evaluate_checkpoint", evaluate_checkpoint)
    save(run, 4, attempt=1)
    following = Following()
    following.training_over.set()
    with disable_run_logger():
        evaluate_as_committed.fn(config, following)
    assert tried == [4, 4]
