"""The words of a whole log against the rules' verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from configs.diagnose_schema import DiagnoseConfig
from tasks.diagnose.answer import Diagnosis, answer
from tasks.diagnose.bench_diagnose import CASES
from tasks.diagnose.compress import compress
from tasks.diagnose.compressed import Compressed
from tasks.diagnose.diagnose import diagnose_files, diagnose_scan
from tasks.diagnose.logs import LogLine
from tasks.diagnose.scan import Scan
from tasks.diagnose.scan_files import scan_files
from tasks.diagnose.scores import LabelledLog, read_cases
from tasks.diagnose.second_opinion import METHOD, with_second_opinion
from tasks.diagnose.sources import source_of
from tasks.diagnose.word_model import features, word_model

LOCKED_MEMORY = Path(__file__).parent / "words" / "locked_memory.log"
"""No case, so not fitted to: what its rank says of memory is said of a network card's registration."""
EVERY = 12


def _lines(bodies: Sequence[str]) -> list[LogLine]:
    return [
        LogLine("a.log", number, body, None, body) for number, body in enumerate(bodies, start=1)
    ]


def _read(tmp_path: Path, lines: Sequence[str]) -> tuple[Scan, Compressed]:
    log = tmp_path / "job.log"
    log.write_text("\n".join(lines) + "\n")
    sources = [source_of(log, "job.log")]
    return scan_files(sources), compress(sources)


def test_features_are_words_and_pairs_within_a_line() -> None:
    assert features(["Rank 3: Out of memory", "x9 killed"]) >= {"rank", "out of", "killed"}
    assert "memory killed" not in features(["out of memory", "killed"])
    assert features(["12 % 7"]) == set()


def test_likelihood_is_over_all_classes_and_names_the_line_that_speaks() -> None:
    bodies = ["epoch begins", "KeyError: 'labels'", "done"]
    words = word_model().likelihood(_lines(bodies))
    assert words is not None
    assert sum(words.by_class.values()) == pytest.approx(1.0, abs=1e-3)
    assert (words.likeliest, words.line.number) == ("KeyError", 2)
    assert word_model().likelihood(_lines(["qzx vvw", "17"])) is None
    assert word_model().likelihood([]) is None


def test_words_decide_against_a_rule_that_misread_one_line() -> None:
    rules = diagnose_files([LOCKED_MEMORY])
    (found,) = answer([str(LOCKED_MEMORY)])
    assert isinstance(found, Diagnosis)
    assert rules.failure_class == "OutOfMemoryError"
    assert (found.failure_class, found.method) == ("NetworkError", METHOD)
    assert any("rules alone say OutOfMemoryError" in quote for quote in found.evidence)
    assert found.root_cause_line is not None
    assert found.root_cause_text.strip() in LOCKED_MEMORY.read_text()


def test_words_never_say_that_nothing_failed_or_that_something_did(tmp_path: Path) -> None:
    scan, logs = _read(tmp_path, LOCKED_MEMORY.read_text().splitlines())
    well = diagnose_scan(scan).model_copy(update={"failure_class": "NoFailure"})
    assert with_second_opinion(well, scan, logs) is well


def test_words_never_say_that_ranks_lost_each_other(tmp_path: Path) -> None:
    """However many of them report a time-out: what one of them asserts comes first."""
    watchdog = (
        "[rank{0}]:[E414 03:17:45.469832097 ProcessGroupNCCL.cpp:{1}] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=26011, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600038 milliseconds"
    )
    ours = ["[rank11]: Traceback (most recent call last):", '[rank11]:   File "t.py", line 6, in f']
    bodies = [*ours, "[rank11]: AssertionError: qzx", *(watchdog.format(n, 632) for n in range(9))]
    scan, logs = _read(tmp_path, bodies)
    rules, words = diagnose_scan(scan), word_model().likelihood(logs.kept)
    assert words is not None and words.likeliest == "NCCLTimeoutError"
    assert words.by_class["NCCLTimeoutError"] > 10 * words.by_class["AssertionError"] + 0.01
    assert rules.failure_class == "AssertionError"
    assert with_second_opinion(rules, scan, logs) is rules


def test_words_need_more_against_what_hardware_says(tmp_path: Path) -> None:
    """One GPU gone, and what eight ranks say of it: the words are of other classes, but not clearly."""
    steps = [f"step {n} loss: 2.{n}" for n in range(20)]
    gone = "node07 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=88, GPU has fallen off the bus."
    peers = [
        f"[rank{n}]: ncclRemoteError: A call failed possibly due to a remote process"
        for n in range(8)
    ]
    scan, logs = _read(tmp_path, [*steps, gone, *peers])
    rules = diagnose_scan(scan)
    assert (rules.failure_class, rules.faulty_node) == ("NodeFailure", "node07")
    assert with_second_opinion(rules, scan, logs) is rules


def test_what_a_model_samples_is_none_of_the_logs_words(tmp_path: Path) -> None:
    sampled = [
        f'sample {n}: "FileNotFoundError: No such file or directory: /data/{n}"' for n in range(9)
    ]
    limit = (
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2025-01-01T10:00:00 DUE TO TIME LIMIT ***"
    )
    log = tmp_path / "job.log"
    log.write_text("\n".join([*sampled, limit]) + "\n")
    (found,) = answer([str(log)], DiagnoseConfig(store=tmp_path / "store"))
    assert isinstance(found, Diagnosis)
    assert found.failure_class == "SlurmTimeLimit"


def test_a_few_lines_are_left_to_the_rules(tmp_path: Path) -> None:
    scan, logs = _read(tmp_path, ["KeyError: 'labels'"])
    other = diagnose_scan(scan).model_copy(update={"failure_class": "CgroupOOM"})
    assert with_second_opinion(other, scan, logs) is other


@pytest.mark.parametrize("case", read_cases(CASES)[::EVERY], ids=lambda case: case.path.name)
def test_cases_keep_their_verdicts(case: LabelledLog) -> None:
    sources = [source_of(case.path, case.path.name)]
    scan = scan_files(sources)
    rules = diagnose_scan(scan)
    assert with_second_opinion(rules, scan, compress(sources)).failure_class == rules.failure_class
