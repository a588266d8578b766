"""Runs that a site's own service or controller stops in words of its own, and what only resembles that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.diagnose.one_log import verdict_on

STEPS = [f"s={n} xent={2 - n / 1000:.4f} skew=1.0" for n in range(20)]
LOST = [
    f"[rank{n}]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error"
    for n in (0, 17)
]


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("[launcher] rule 11 not satisfied: ticket REL-2 is not signed, run is stopped by policy", "fix_by_user"),
        ("gate: release approval for run 77 expired, run must stop", "fix_by_user"),
        ("hall-B bms: DIRECTIVE 7: compute envelope of tenant lm-core withdrawn, stop code 31", "resubmit_later"),
        ("<12>1 2025-08-01T16:28:20Z plc-b safety - - - light curtain interrupted, protective stop", "resubmit_later"),
        ("bookd: reservation R-12 closed for maintenance", "resubmit_later"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("after", [[], LOST, ["lane closed", "status 83"]])
def test_what_stops_a_run_is_told_before_what_comes_of_it(
    tmp_path: Path, said: str, action: str, after: list[str]
) -> None:
    verdict = verdict_on(tmp_path, [*STEPS, said, "stopping 48 processes, status 90", *after])
    assert (verdict.failure_class, verdict.action) == ("Unknown", action)
    assert verdict.root_cause_line == len(STEPS) + 1


@pytest.mark.parametrize(
    "said",
    [
        "launcher: worker 3 was lost, stopping the job by policy any-failure",
        "session with peer 10.0.0.3 closed by rule restart-on-error",
        "the run was stopped",
    ],
)
def test_a_launcher_that_answers_a_failure_is_no_authority(tmp_path: Path, said: str) -> None:
    verdict = verdict_on(tmp_path, [*STEPS, said, *LOST])
    assert verdict.failure_class == "NCCLRemoteError"


def test_training_that_went_on_was_not_stopped(tmp_path: Path) -> None:
    said = "[launcher] licence lease expired, run is stopped by policy"
    assert verdict_on(tmp_path, [said, *STEPS, *LOST]).failure_class == "NCCLRemoteError"
    fault = ["Traceback (most recent call last):", '  File "t.py", line 1, in f', "KeyError: 'x'"]
    assert verdict_on(tmp_path, [*STEPS, said, *fault]).failure_class == "KeyError"
