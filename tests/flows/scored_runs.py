"""Runs with checkpoints and scores, as far as anybody looks at them where scores are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.files import write_text
from configs.load import load_config
from configs.records import EvaluationScores, Score
from configs.rundir import COMMIT_MARKER_NAME, RunDir, write_record
from configs.schema import RunConfig
from tests.flows.helpers import tiny_config

STEPS = (4, 8, 12, 16, 20, 24)
ACCURACY = dict(zip(STEPS, (0.50, 0.51, 0.50, 0.51, 0.50, 0.20), strict=True))
"""By step; the last one has regressed."""


def make(folder: Path, **evaluate: Any) -> RunConfig:
    regressions = {
        "webhook_env": "ALERT_URL",
        "webhook_timeout_s": 5.0,
        "webhook_tries": 1,
        **evaluate.pop("regressions", {}),
    }
    changes = {"enabled": True, "order": "oldest_first", "regressions": regressions, **evaluate}
    return load_config(tiny_config(folder, evaluate=changes, train={"steps": 24}))


def commit(run: RunDir, step: int) -> None:
    folder = run.checkpoint(step).path
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / COMMIT_MARKER_NAME, f"step {step}")


def score(run: RunDir, step: int) -> EvaluationScores:
    row = Score(task="t", metric="acc,none", value=ACCURACY[step], higher_is_better=True)
    identity = run.checkpoint(step).identity() or ""
    scores = EvaluationScores(
        step=step, scores=[row], tasks=["t"], checkpoint=identity, plan_sha256=""
    )
    write_record(run.evaluation(step).scores_path, scores)
    return scores
