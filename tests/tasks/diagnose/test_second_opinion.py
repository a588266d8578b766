"""What unsure verdicts become: learned rules, then past cases, then a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from configs.diagnose_schema import DiagnoseConfig
from configs.errors import LanguageModelError
from tasks.diagnose.learned_rules import RuleBook, new_rule
from tasks.diagnose.logs import LogLine
from tasks.diagnose.second_opinion import second_opinion
from tasks.diagnose.verdicts import make_verdict

UNKNOWN = make_verdict("Unknown", method="none", confidence=0.1, rank=2)
LICENCE = "lmgrd[77]: checkout of feature SOLVER refused: all licences are in use"
QUOTA = "OSError: [Errno 122] Disk quota exceeded: '/project/b/ckpt/mp_rank_01'"


def lines_of(*texts: str) -> list[LogLine]:
    return [LogLine("x.log", number, None, text, text) for number, text in enumerate(texts, 1)]


def config(folder: Path) -> DiagnoseConfig:
    return DiagnoseConfig(store=folder)


class Counting:
    """A model that gives no answer, and counts how often it is asked."""

    name = "counting"

    def __init__(self) -> None:
        self.asked = 0

    def complete(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        schema: Mapping[str, Any],
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> dict[str, Any]:
        self.asked += 1
        raise LanguageModelError("no")


def test_a_sure_verdict_is_not_touched(tmp_path: Path) -> None:
    def never() -> NoReturn:
        raise AssertionError("the log is not needed")

    sure = make_verdict("OSError", method="disk_full", confidence=0.85)
    assert second_opinion(sure, never, config(tmp_path)) is sure
    assert not list(tmp_path.iterdir())


def test_a_near_case_gives_the_class_and_the_model_is_not_asked(tmp_path: Path) -> None:
    model = Counting()
    found = second_opinion(UNKNOWN, lambda: lines_of("step 1", QUOTA), config(tmp_path), model)
    assert (found.failure_class, found.method, found.action) == (
        "OSError",
        "past_cases",
        "fix_by_user",
    )
    assert any("os-quota" in line for line in found.evidence)
    assert found.faulty_rank == 2
    assert model.asked == 0


def test_no_near_case_leaves_it_unknown_with_the_nearest_beside(tmp_path: Path) -> None:
    model = Counting()
    found = second_opinion(
        UNKNOWN, lambda: lines_of("zorp", "blib failed oddly"), config(tmp_path), model
    )
    assert (found.failure_class, found.confidence) == ("Unknown", 0.1)
    assert any("like case" in line for line in found.evidence)
    assert model.asked == 1
    assert found.evidence[-1].startswith("language model: no")


def test_a_learned_rule_comes_first(tmp_path: Path) -> None:
    rule = new_rule(
        failure_class="ConnectionError",
        pattern=r"checkout of feature \w+ refused",
        evidence=LICENCE,
        model="tester",
        log="y.log",
        known=[],
    )
    assert RuleBook(tmp_path).add(rule) == []
    model = Counting()
    found = second_opinion(UNKNOWN, lambda: lines_of("step 1", LICENCE), config(tmp_path), model)
    assert (found.failure_class, found.method) == ("ConnectionError", "learned_connectionerror_1")
    assert found.root_cause_line == 2
    assert any("tester" in line for line in found.evidence)
    assert model.asked == 0


@pytest.mark.parametrize("failure_class", ["ECCError", "NodeFailure", "NVLinkError"])
def test_no_node_is_excluded_on_likeness_alone(tmp_path: Path, failure_class: str) -> None:
    from tasks.diagnose.cases import packaged_cases

    case = next(c for c in packaged_cases() if c.failure_class == failure_class)
    found = second_opinion(UNKNOWN, lambda: lines_of(*case.lines), config(tmp_path))
    assert found.failure_class == failure_class
    assert found.action == UNKNOWN.action


def test_damaged_learned_rules_are_said_and_cost_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "learned_rules.yaml").write_text("rules: {")
    found = second_opinion(UNKNOWN, lambda: lines_of(QUOTA), config(tmp_path))
    assert found.failure_class == "OSError"
    assert any("learned rules were left out" in line for line in found.evidence)


def test_likeness_to_a_healthy_job_is_no_success(tmp_path: Path) -> None:
    from tasks.diagnose.cases import packaged_cases

    case = next(c for c in packaged_cases() if c.id == "done-teardown")
    found = second_opinion(UNKNOWN, lambda: lines_of(*case.lines), config(tmp_path))
    assert found.failure_class == "Unknown"
