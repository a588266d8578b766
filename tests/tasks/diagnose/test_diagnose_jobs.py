"""End to end: real torchrun jobs are made to fail, and their logs are diagnosed.

Every job also meets a full disk once, at a save that is given up: that is never the verdict.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.diagnose.diagnose import diagnose_attempt
from tests.tasks.diagnose.torchrun_jobs import failed_record, run_job

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("how", "failure_class", "method", "action", "said"),
    [
        ("signal:SIGKILL", "NodeFailure", "rank_killed", "restart_same_nodes", "exitcode: -9"),
        ("signal:SIGTERM", "NodeFailure", "rank_killed", "restart_same_nodes", "exitcode: -15"),
        ("segfault", "RuntimeError", "rank_crashed", "restart_same_nodes", "Segmentation fault"),
        ("chain", "FileNotFoundError", "exception", "fix_by_user", "/nonexistent/weights"),
    ],
)
def test_the_rank_that_failed_is_named_with_its_cause(
    tmp_path: Path, how: str, failure_class: str, method: str, action: str, said: str
) -> None:
    attempt = run_job(tmp_path, how)
    verdict = diagnose_attempt(attempt, failed_record())
    assert (verdict.failure_class, verdict.method) == (failure_class, method)
    assert verdict.faulty_rank == 1
    assert verdict.action == action
    assert said in verdict.root_cause_text
    assert verdict.root_cause_file is not None and verdict.root_cause_line is not None
    quoted = (attempt.path / verdict.root_cause_file).read_text().splitlines()
    assert said in quoted[verdict.root_cause_line - 1]
    assert verdict.evidence[0].startswith(f"{verdict.root_cause_file}:{verdict.root_cause_line}: ")
    assert (verdict.faulty_node == "box") == (failure_class == "NodeFailure")
    if method == "rank_killed":
        assert any("nothing in the logs says who" in line for line in verdict.evidence)


def test_a_rank_that_does_not_join_is_named_by_the_time_out_of_the_other(tmp_path: Path) -> None:
    attempt = run_job(tmp_path, "sleep", timeout_s=4.0)
    verdict = diagnose_attempt(attempt, failed_record())
    assert (verdict.failure_class, verdict.faulty_rank) == ("NCCLTimeoutError", 1)
    assert verdict.action == "restart_same_nodes"

    hung = diagnose_attempt(attempt, failed_record(hung=True, reason="no step for 600 s"))
    assert (hung.failure_class, hung.method, hung.faulty_rank) == ("Hang", "monitor", 1)
    assert hung.evidence[0] == "monitor: no step for 600 s"
