"""How far an evaluation is: what failed is not counted as scored, and nothing is said again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.files import write_text
from configs.rundir import EvaluationDir
from tasks.evaluate import progress
from tasks.evaluate.progress import Progress, how_far


class Plan:
    """As much of a plan as is asked."""

    targets = ("good", "bad", "later")

    def shards(self) -> list[tuple[object, object]]:
        return []

    def sha256(self) -> str:
        return "this plan"


def test_tasks_that_failed_are_not_counted_as_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = EvaluationDir(tmp_path, step=0)
    monkeypatch.setattr(progress, "config_of", lambda evaluation: None)
    monkeypatch.setattr(progress, "current_plan", lambda config, evaluation: Plan())
    assert how_far(evaluation) == "0 of 0 shards answered, 0 of 3 tasks scored"
    for name, plan, failure in (
        ("000_good", "this plan", "null"),
        ("001_bad", "this plan", '"its metric raised"'),
        ("002_later", "another plan", "null"),
    ):
        text = f'{{"plan_sha256": "{plan}", "failure": {failure}}}'
        write_text(evaluation.target_scores_dir / f"{name}.json", text)
    write_text(evaluation.target_scores_dir / "003_cut.json", '{"plan_')
    assert how_far(evaluation) == "0 of 0 shards answered, 1 of 3 tasks scored, 1 failed"


def test_what_has_not_changed_is_said_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    now = [0.0]
    words = ["making the plan"]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "how_far", lambda evaluation: words[0])
    tells = Progress(EvaluationDir(tmp_path, step=0), said.append)
    for now[0] in range(1, 140):
        tells.look()
    assert said == [
        "making the plan",
        "making the plan (for 1 min now)",
        "making the plan (for 2 min now)",
    ]
    words[0] = "0 of 8 shards answered"
    for now[0] in range(140, 190):
        tells.look()
    assert said[3:] == ["0 of 8 shards answered"]
    tells.end()
    assert said[4:] == []
    words[0] = "8 of 8 shards answered"
    tells.end()
    assert said[4:] == ["8 of 8 shards answered"]
