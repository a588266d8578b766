"""What likeness to a past case may decide, and what not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from configs.diagnose_schema import DiagnoseConfig
from tasks.diagnose import second_look
from tasks.diagnose.cases import packaged_cases
from tasks.diagnose.compress import compress
from tasks.diagnose.failure_agent import OpenFailure, ask_about_failure
from tasks.diagnose.logs import LogLine
from tasks.diagnose.retrieval import ALIKE, Neighbour
from tasks.diagnose.second_look import look_further
from tasks.diagnose.verdicts import make_verdict

SETTINGS = DiagnoseConfig()
UNKNOWN = make_verdict("Unknown", method="none", confidence=0.1)


def near(failure_class: str, similarity: float) -> list[Neighbour]:
    case = next(c for c in packaged_cases() if c.failure_class == failure_class)
    return [Neighbour(case=case, similarity=similarity)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_text("something broke\n")
    return path


@pytest.mark.parametrize(
    ("failure_class", "similarity", "expected", "action"),
    [
        ("FileNotFoundError", ALIKE, "FileNotFoundError", "fix_by_user"),
        ("FileNotFoundError", ALIKE - 0.01, "Unknown", UNKNOWN.action),
        ("ECCError", 1.0, "ECCError", UNKNOWN.action),
        ("NoFailure", 1.0, "Unknown", UNKNOWN.action),
    ],
)
def test_likeness_alone_excludes_no_node_and_calls_nothing_healthy(
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure_class: str,
    similarity: float,
    expected: str,
    action: str,
) -> None:
    found = near(failure_class, similarity)
    monkeypatch.setattr(second_look, "nearest", lambda *_, **__: found)
    verdict = look_further(UNKNOWN, compress([log]), SETTINGS)
    assert (verdict.failure_class, verdict.action) == (expected, action)


def test_a_verdict_that_is_sure_is_left_alone(log: Path) -> None:
    sure = make_verdict("KeyError", method="exception", confidence=0.9)
    assert look_further(sure, compress([log]), SETTINGS) is sure


@pytest.mark.parametrize(
    ("similarity", "action"), [(ALIKE, "restart_exclude_node"), (0.2, "resubmit_later")]
)
def test_a_case_that_is_not_alike_supports_no_word_of_a_model(
    similarity: float, action: str
) -> None:
    class Says:
        name = "m"

        def complete(self, *_: object, **__: object) -> dict[str, Any]:
            return {
                "class": "ECCError",
                "category": "infrastructure",
                "at_fault": "infrastructure",
                "quotes": ["something broke"],
                "mitigation": "Replace it.",
                "rule": None,
            }

    line = LogLine("a.log", 1, None, "something broke", "something broke")
    failure = OpenFailure(UNKNOWN, [line], near("ECCError", similarity))
    verdict = ask_about_failure(Says(), failure, book=None)
    assert (verdict.failure_class, verdict.action) == ("ECCError", action)
