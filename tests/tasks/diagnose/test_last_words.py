"""Logs whose last line is all there is: what a shell or a container says of a program's end, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import InputError
from tasks.diagnose.answer import answer, confirm_diagnosis
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.diagnose import diagnose_files, diagnose_scan
from tasks.diagnose.fast import FastScan, ScanLimits
from tasks.diagnose.rules import default_rules
from tasks.diagnose.scan import Scan
from tasks.diagnose.sources import blocks_of, source_of
from tasks.diagnose.verdicts import MAX_TEXT_CHARS, make_verdict

STEPS = "".join(f"step {step} loss: 2.{step}\n" for step in range(1, 300))


def _log(tmp_path: Path, last: str) -> Path:
    path = tmp_path / "job.log"
    path.write_text(STEPS + last)
    return path


@pytest.mark.parametrize(
    ("last", "failure_class", "method"),
    [
        ("Segmentation fault (core dumped)", "RuntimeError", "process_crashed"),
        ("Bus error (core dumped)", "RuntimeError", "process_crashed"),
        ("Aborted (core dumped)", "RuntimeError", "process_crashed"),
        ("run.sh: line 3:  4411 Aborted  (core dumped) ./x", "RuntimeError", "process_crashed"),
        ("Process exited with code 139", "RuntimeError", "process_crashed"),
        ("command terminated with exit code 137", "CgroupOOM", "process_killed"),
        ("Process exited with code 137", "CgroupOOM", "process_killed"),
        ("Terminated", "Unknown", "job_signalled"),
        ("run.sh: line 3:  4411 Terminated   python train.py", "Unknown", "job_signalled"),
        ("run.sh: line 3:  4412 Terminated   nvidia-smi dmon", "Unknown", "none"),
        ("Process exited with code 1370", "Unknown", "none"),
    ],
)
def test_a_last_word_tells_how_the_program_ended(
    tmp_path: Path, last: str, failure_class: str, method: str
) -> None:
    path = _log(tmp_path, last + "\n")
    verdict = diagnose_files([path])
    assert (verdict.failure_class, verdict.method) == (failure_class, method)
    assert verdict.root_cause_line == (None if method == "none" else 300)
    limits = ScanLimits(block_bytes=4096, head_lines=3, tail_lines=50, steps=40)
    scan = Scan(default_rules())
    source = source_of(path, path.name)
    FastScan(scan, limits).read(source, blocks_of(source, limits.block_bytes))
    assert diagnose_scan(scan).method == method


def test_a_crash_that_training_went_on_after_is_said_to_be_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"{STEPS}Process exited with code 137\n{STEPS}")
    verdict = diagnose_files([path])
    assert verdict.failure_class == "Unknown"
    assert "went on" in verdict.evidence[0] and "job.log:300: Process" in verdict.evidence[0]
    assert "quoted" not in verdict.mitigation


def test_a_line_that_was_not_read_whole_is_named(tmp_path: Path) -> None:
    verdict = diagnose_files([_log(tmp_path, "x" * 100_000 + "\n")])
    assert verdict.evidence[-1].startswith("job.log:300 is very long")
    assert len(diagnose_files([_log(tmp_path, "x" * 900 + "\n")]).evidence) == 1


@pytest.mark.parametrize("name", ["CUDAError", "NodeFailure", "Hang", "ECCError", "NVLinkError"])
def test_advice_says_the_same_as_the_action(name: str) -> None:
    verdicts = [
        make_verdict(name, method="x", confidence=1.0, action=action)
        for action in ("restart_same_nodes", "restart_exclude_node")
    ]
    same, other = (verdict.mitigation for verdict in verdicts)
    assert same != other and CLASSES[name].mitigation in (same, other)
    assert " out of " not in same.partition("If it")[0]
    assert "exclude" not in other and " out of " in other


def test_an_empty_log_is_no_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAND_CASES", str(tmp_path / "store"))
    (tmp_path / "a.log").write_text("\n\n")
    list(answer([str(tmp_path / "a.log")]))
    with pytest.raises(InputError, match="holds no line"):
        confirm_diagnosis(str(tmp_path / "a.log"), "Hang")


def test_of_a_root_line_that_is_cut_beginning_and_end_are_quoted(tmp_path: Path) -> None:
    log = _log(tmp_path, "[launch] " + "--flag " * 1000 + "KeyError: 'lr'\n")
    verdict = diagnose_files([log])
    quoted = verdict.evidence[0].removeprefix("job.log:300: ")
    for quote, most in ((verdict.root_cause_text, MAX_TEXT_CHARS), (quoted, 500)):
        assert quote.startswith("[launch] --flag ")
        assert quote.endswith("--flag KeyError: 'lr'")
        assert most - 2 * len("--flag ") <= len(quote) <= most


def test_the_details_of_an_error_are_shown_with_it(tmp_path: Path) -> None:
    error = "[rank1]: RuntimeError: Error(s) in loading state_dict for GPT:\n"
    other, details = (
        "[rank0]: loading\n",
        '[rank1]: \tMissing key(s) in state_dict: "head.weight". \n',
    )
    verdict = diagnose_files([_log(tmp_path, error + other + details)])
    assert verdict.failure_class == "ModelLoadingError"
    assert 'Missing key(s) in state_dict: "head.weight"' in verdict.evidence[1]


@pytest.mark.parametrize(
    ("said", "later", "root"),
    [
        ("[main] data layer returned status 75 (temporary), EXITING on all ranks", "", 300),
        ("[client] no lease after 12 tries, leaving", "", 300),
        ("[eval] leaving evaluation", "step 300 loss: 2.1\n", 302),
        ("[main] all ranks are ready", "", 301),
    ],
)
def test_a_rank_that_ends_itself_has_said_that_it_leaves(
    tmp_path: Path, said: str, later: str, root: int
) -> None:
    seen = "E1014 23:12:02.2 22 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 75) local_rank: 0 (pid: 9)"
    verdict = diagnose_files([_log(tmp_path, f"{said}\n{later}{seen} of binary: python\n")])
    assert (verdict.failure_class, verdict.root_cause_line) == ("Unknown", root)
