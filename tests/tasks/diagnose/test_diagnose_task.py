"""The diagnose task: its verdict is on record, also when the diagnosis itself fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from configs.records import Verdict
from configs.rundir import AttemptDir, RunDir, write_record
from configs.schema import RecoveryConfig, RunConfig
from tasks.diagnose import task
from tasks.recover.policy import attempt_history, decide
from tests.tasks.diagnose.torchrun_jobs import failed_record


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    """A failed attempt."""
    attempt = RunDir(tmp_path / "run").attempt(1)
    write_record(attempt.record_path, failed_record())
    return attempt


@pytest.fixture(autouse=True)
def plain_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No flow run, so no flow run's logger and page."""
    monkeypatch.setattr(task, "get_run_logger", lambda: logging.getLogger("flow"))
    monkeypatch.setattr(task, "create_markdown_artifact", lambda *_, **__: None)
    with disable_run_logger():
        yield


def diagnose(attempt: AttemptDir, **settings: object) -> Verdict:
    config = RunConfig.model_validate({"run_dir": attempt.path.parent.parent, "diagnose": settings})
    return task.diagnose.fn(config, attempt.number)


def test_the_verdict_is_written_and_kept(attempt: AttemptDir) -> None:
    attempt.rank_log(0).write_text("ZeroDivisionError: division by zero\n")
    verdict = diagnose(attempt)
    assert verdict.failure_class == "ZeroDivisionError"
    attempt.rank_log(0).write_text("")
    assert diagnose(attempt) == attempt.verdict() == verdict


def test_a_diagnosis_that_fails_is_an_unknown_failure(
    attempt: AttemptDir, caplog: pytest.LogCaptureFixture
) -> None:
    attempt.rank_log(0).mkdir()  # Reading it raises.
    verdict = diagnose(attempt)
    assert attempt.verdict() == verdict
    assert (verdict.failure_class, verdict.method) == ("Unknown", "diagnosis_failed")
    assert verdict.evidence[0].startswith("diagnosis: IsADirectoryError: ")
    assert "the diagnosis of attempt 1 failed" in caplog.text
    assert "Traceback" in caplog.text
    run = RunDir(attempt.path.parent.parent)
    action = decide(attempt_history(run), RecoveryConfig(), now=0.0)
    assert (action.kind, action.stop) == ("resubmit_later", False)


def test_broken_learned_rules_cost_only_themselves(attempt: AttemptDir, tmp_path: Path) -> None:
    (tmp_path / "learned_rules.yaml").write_text("rules: 3")
    attempt.rank_log(0).write_text("ZeroDivisionError: division by zero\n")
    assert diagnose(attempt, store=tmp_path).failure_class == "ZeroDivisionError"


def test_the_rules_verdict_stands_when_past_cases_cannot_be_compared(
    attempt: AttemptDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attempt.rank_log(0).write_text("step 1\n[sim] FATAL mesh partition 3 has no cells\n")
    verdict = diagnose(attempt, store=tmp_path / "cases", embedding_model=tmp_path / "no-model")
    assert (verdict.method, verdict.root_cause_line) == ("none", 2)
    assert "ConfigError: diagnose.embedding_model" in verdict.evidence[-1]
    assert "the rules' verdict stands alone" in caplog.text
