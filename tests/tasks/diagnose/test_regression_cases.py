"""The regression set: every case that is labelled gets its class, root line, node and action.

The rules were improved on these cases, so this holds what is there; docs/diagnosis-accuracy.md tells what each
set scored when it was new.
"""

from __future__ import annotations

import pytest

from tasks.diagnose.bench_diagnose import CASES, bench_diagnose
from tasks.diagnose.diagnose import diagnose_files, diagnose_scan
from tasks.diagnose.fast import FastScan, ScanLimits
from tasks.diagnose.rules import default_rules
from tasks.diagnose.scan import Scan
from tasks.diagnose.scores import Answer, LabelledLog, read_cases, score
from tasks.diagnose.sources import blocks_of, source_of

ALL = read_cases(CASES)


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.path.parent.name}/{case.path.stem}")
def test_a_labelled_case_is_diagnosed_as_labelled(case: LabelledLog) -> None:
    verdict = diagnose_files([case.path])
    assert (verdict.failure_class, verdict.action) == (case.failure_class, case.action)
    answer = Answer(
        verdict.failure_class, verdict.root_cause_line, verdict.faulty_node, verdict.action
    )
    figures = score([case], [answer])
    assert not case.root_lines or figures["root_line"] == 1.0, verdict.root_cause_line
    assert not case.nodes or figures["node"] == 1.0, verdict.faulty_node


def test_there_are_cases_of_every_class_and_most_kinds_of_origin() -> None:
    from tasks.diagnose.classes import CLASSES

    assert len(ALL) >= 300
    assert {case.failure_class for case in ALL} == set(CLASSES)


@pytest.mark.parametrize("one_in", [10, pytest.param(1, marks=pytest.mark.soak)])
def test_what_large_logs_are_read_by_comes_to_the_same_verdicts(one_in: int) -> None:
    limits = ScanLimits(block_bytes=4096, head_lines=3, tail_lines=120, steps=40)
    different = []
    for case in ALL[::one_in]:
        scan = Scan(default_rules())
        source = source_of(case.path, case.path.name)
        FastScan(scan, limits).read(source, blocks_of(source, limits.block_bytes))
        quick, whole = diagnose_scan(scan), diagnose_files([case.path])
        if quick.model_copy(update={"evidence": whole.evidence}) != whole:
            different.append((case.path.name, quick.failure_class, whole.failure_class))
    assert not different


def test_the_benchmark_measures_all() -> None:
    figures = bench_diagnose(CASES / "third")
    names = [row["name"] for row in figures["results"]]
    assert names[0] == "overland" and names[-1] == "last error line"
    assert figures["cases"] == figures["results"][0]["cases"]
    last = figures["results"][-1]
    assert last["accuracy"] < figures["results"][0]["accuracy"]
