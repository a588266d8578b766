"""Who is behind, by the steps that ranks report."""

from __future__ import annotations

from pathlib import Path

from tests.tasks.diagnose.one_log import verdict_on


def _reports(prefix: str, last: range) -> list[str]:
    """Steps of four numbers side by side; those of `last` also report the last step."""
    at = "2025-12-05 04:{0:02}:31 " + prefix
    lines = [at.format(step, n) + f" step {step} loss 2.2" for step in range(9) for n in range(4)]
    return lines + [at.format(9, n) + " step 9, entering grad sync" for n in last]


def test_a_column_of_numbers_before_steps_is_of_ranks(tmp_path: Path) -> None:
    place = [f"[launch] rank {rank} -> host gn0{rank // 2}" for rank in range(4)]
    capture = "[s] snapshot 2025-12-05T05:17:45 job=3 state=RUNNING last_output=2025-12-05T04:09:31"
    verdict = verdict_on(tmp_path, [*place, *_reports("[{1:02}]", range(3)), capture])
    assert (verdict.failure_class, verdict.faulty_rank) == ("Hang", 3)
    assert verdict.faulty_node == "gn01"


def test_a_column_of_epochs_is_not_of_ranks(tmp_path: Path) -> None:
    epochs = [
        f"2025-12-05 0{epoch}:{step:02}:31 [{epoch}] step {step} loss 2.2"
        for epoch in range(5)
        for step in range(30 if epoch < 4 else 9)
    ]
    capture = "[s] snapshot 2025-12-05T09:17:45 job=3 state=RUNNING last_output=2025-12-05T04:08:31"
    verdict = verdict_on(tmp_path, [*epochs, capture])
    assert (verdict.failure_class, verdict.faulty_rank) == ("Hang", None)
