"""Learned rules: which are loaded, and how little they may say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from configs.diagnose_schema import DiagnoseConfig
from configs.records import Verdict
from configs.rundir import RunDir, write_record
from tasks.diagnose import regression_lines
from tasks.diagnose.answer import Diagnosis, answer
from tasks.diagnose.cases import packaged_cases
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.diagnose import diagnose_scan
from tasks.diagnose.learned_rules import LearnedRule, RuleBook, learned_rules, new_rule
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.scan_files import scan_files
from tasks.diagnose.sources import source_of
from tasks.diagnose.verdicts import make_verdict
from tests.tasks.diagnose.pack_lines import lines_of_cases
from tests.tasks.diagnose.torchrun_jobs import failed_record


def rule_for(failure_class: str, pattern: str, evidence: str) -> LearnedRule:
    return new_rule(
        failure_class=failure_class,
        pattern=pattern,
        evidence=evidence,
        model="m",
        log="x",
        known=[],
    )


def learn(tmp_path: Path, failure_class: str, pattern: str, evidence: str) -> None:
    """Put a learned rule into the folder, whatever speaks against it."""
    rule = rule_for(failure_class, pattern, evidence)
    text = json.dumps({"rules": [rule.model_dump(mode="json", by_alias=True)]})
    (tmp_path / "learned_rules.yaml").write_text(text)


def diagnose(tmp_path: Path, text: str) -> Verdict:
    log = tmp_path / "job.log"
    log.write_text(text)
    return diagnose_scan(scan_files([source_of(log)], learned=learned_rules(tmp_path)))


def test_a_rule_for_routine_lines_is_not_loaded(tmp_path: Path) -> None:
    line = " iteration {}/ 100 | consumed samples: {} | elapsed time per iteration (ms): 9.1 | lm loss: 2.4E+00 |\n"
    learn(tmp_path, "NodeFailure", r"consumed samples: +\d+ ", line.format(9, 9))
    assert not learned_rules(tmp_path)
    healthy = "".join(line.format(step, step * 64) for step in range(20))
    assert diagnose(tmp_path, healthy).failure_class == "Unknown"


def test_a_rule_for_another_class_of_the_regression_logs_does_not_join(tmp_path: Path) -> None:
    """Of logs that no packaged case was written from: causes, and all of what rules leave open."""
    written = {line for case in packaged_cases() for line in case.lines}
    others = {
        name: [x for x in lines if x not in written] for name, lines in lines_of_cases().items()
    }
    book = RuleBook(tmp_path)
    for name in ("Unknown", "KeyError", "NodeFailure"):
        line = max(others[name], key=len)[:200]
        words = re.escape(line[:120]).replace("\\ ", " ")
        rule = rule_for("AssertionError", words, line)
        assert any(f"of a log whose class is {name}" in said for said in book.problems(rule)), line
    assert not book.problems(
        rule_for("AssertionError", "a frobnicator was jammed", "a frobnicator was jammed")
    )


@pytest.mark.parametrize(
    "pattern", [r"^the pump is off$", r"(?i)^THE PUMP", r"\Athe pump is", "pump is"]
)
def test_a_line_among_many_is_found_as_it_is_alone(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = {"KeyError": ["one", "the pump is off", "two"], "OSError": ["three"]}
    monkeypatch.setattr(regression_lines, "regression_lines", lambda: lines)
    regression_lines._text.cache_clear()
    found = regression_lines.line_of_another_class(compile_pattern(pattern), "OSError")
    assert found == ("KeyError", "the pump is off")
    assert regression_lines.line_of_another_class(compile_pattern(pattern), "KeyError") is None
    regression_lines._text.cache_clear()


def test_the_packed_lines_are_those_of_the_cases() -> None:
    """New cases may be ahead by a fourth; then `python -m tests.tasks.diagnose.pack_lines` packs them."""
    packed, now = (
        {(name, line) for name, lines in found.items() for line in lines}
        for found in (regression_lines.regression_lines(), lines_of_cases())
    )
    assert len(packed - now) < len(packed) / 50, "pack them anew: labels or logs have changed"
    assert len(packed & now) > len(now) * 3 / 4, "pack them anew: there are many new cases"


def test_an_attempt_that_rules_do_not_know_is_told_by_a_rule_that_was_learned_since(
    tmp_path: Path,
) -> None:
    told = "conduit watcher: conduit 7 lost its seal"
    learn(tmp_path, "AssertionError", r"conduit \d+ lost its seal", told)
    attempt = RunDir(tmp_path / "run").attempt(1)
    write_record(attempt.record_path, failed_record())
    attempt.rank_log(0).write_text(f"started\n{told}\n")
    write_record(attempt.verdict_path, make_verdict("Unknown", method="none", confidence=0.1))
    path = str(tmp_path / "run")
    (known,) = answer([path], DiagnoseConfig(store=tmp_path))
    assert isinstance(known, Diagnosis)
    assert (known.failure_class, known.method) == ("AssertionError", "learned_assertionerror_1")
    (other,) = answer([path], DiagnoseConfig(store=tmp_path / "another"))
    assert isinstance(other, Diagnosis)
    assert (other.failure_class, other.root_cause_line) == ("Unknown", None)


def test_a_learned_rule_alone_makes_no_failure_and_excludes_no_node(tmp_path: Path) -> None:
    told = "conduit watcher: conduit 7 is degraded on node gpu-17\n"
    learn(tmp_path, "NodeFailure", r"conduit \d+ is degraded on node gpu-\d+", told.strip())
    assert diagnose(tmp_path, f"started\n{told}").failure_class == "Unknown"
    failed = f"started\n{told}srun: error: gpu-3: task 9: Exited with exit code 9\n"
    verdict = diagnose(tmp_path, failed)
    assert (verdict.failure_class, verdict.method) == ("NodeFailure", "learned_nodefailure_1")
    assert (verdict.action, verdict.faulty_node) == (CLASSES["Unknown"].action, None)
    assert verdict.confidence == 0.5


@pytest.mark.parametrize("name", ["rank", "node", "other"])
def test_a_learned_rule_names_no_group(tmp_path: Path, name: str) -> None:
    """It would tell a rank or a node, out of text that a model has read."""
    line = "conduit watcher: conduit 7 gave up on unit r7"
    rule = rule_for("NodeFailure", rf"conduit \d+ gave up on unit (?P<{name}>\w+)", line)
    (problem,) = RuleBook(tmp_path).add(rule)
    assert "names a group" in problem
    unnamed = rule_for("NodeFailure", r"conduit \d+ gave up on unit (\w+)", line)
    assert RuleBook(tmp_path).add(unnamed) == []


def test_rules_are_checked_again_when_their_files_change(tmp_path: Path) -> None:
    assert learned_rules(tmp_path) == []
    learn(tmp_path, "NodeFailure", r"conduit \d+ is degraded", "conduit 7 is degraded")
    assert [rule.id for rule in learned_rules(tmp_path)] == ["learned_nodefailure_1"]
    (tmp_path / "learned_rules.yaml").unlink()
    assert learned_rules(tmp_path) == []
