"""Learned rules: which are loaded, and how little they may say."""

from __future__ import annotations

import json
from pathlib import Path

from configs.records import Verdict
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.diagnose import diagnose_scan
from tasks.diagnose.fast import scan_files
from tasks.diagnose.learned_rules import learned_rules, new_rule
from tasks.diagnose.sources import source_of


def learn(tmp_path: Path, failure_class: str, pattern: str, evidence: str) -> None:
    """Put a learned rule into the folder, whatever speaks against it."""
    rule = new_rule(
        failure_class=failure_class,
        pattern=pattern,
        evidence=evidence,
        model="m",
        log="x",
        known=[],
    )
    text = json.dumps({"rules": [rule.model_dump(mode="json", by_alias=True)]})
    (tmp_path / "learned_rules.yaml").write_text(text)


def diagnose(tmp_path: Path, text: str) -> Verdict:
    log = tmp_path / "job.log"
    log.write_text(text)
    return diagnose_scan(scan_files([source_of(log)], learned=tmp_path))


def test_a_rule_for_routine_lines_is_not_loaded(tmp_path: Path) -> None:
    line = " iteration {}/ 100 | consumed samples: {} | elapsed time per iteration (ms): 9.1 | lm loss: 2.4E+00 |\n"
    learn(tmp_path, "NodeFailure", r"consumed samples: +\d+ ", line.format(9, 9))
    assert not learned_rules(tmp_path)
    healthy = "".join(line.format(step, step * 64) for step in range(20))
    assert diagnose(tmp_path, healthy).failure_class == "Unknown"


def test_a_learned_rule_alone_makes_no_failure_and_excludes_no_node(tmp_path: Path) -> None:
    told = "conduit watcher: conduit 7 is degraded on node gpu-17\n"
    learn(tmp_path, "NodeFailure", r"conduit \d+ is degraded on node (?P<node>\S+)", told.strip())
    assert diagnose(tmp_path, f"started\n{told}").failure_class == "Unknown"
    failed = f"started\n{told}srun: error: gpu-3: task 9: Exited with exit code 9\n"
    verdict = diagnose(tmp_path, failed)
    assert (verdict.failure_class, verdict.method) == ("NodeFailure", "learned_nodefailure_1")
    assert (verdict.action, verdict.faulty_node) == (CLASSES["Unknown"].action, None)
    assert verdict.confidence == 0.5
