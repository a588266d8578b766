"""Lines that look like what programs print and are not: none ends a diagnosis, or makes it large or long."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from tasks.diagnose.compress import compress
from tasks.diagnose.diagnose import diagnose_files
from tasks.diagnose.logs import LogLine
from tasks.diagnose.rules import default_rules
from tasks.diagnose.scan import Scan

TRACEBACK = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'lr'\n"
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.mark.parametrize(
    "line",
    [
        "NODELIST=gpu[1-2-3]",
        "NODELIST=gpu[-,1-,--7,00000000000000000001]",
        "  exitcode  : abc (pid: 5)",
        "  rank      : \N{SUPERSCRIPT TWO} (local_rank: 0)",
        '{"a":' + "[" * 4000,
        '{"level": "error", "rank": -1, "message": "not joined yet"}',
        '{"level": "error", "rank": true, "message": "no number"}',
        "(Worker rank=99999999999, pid=1) hello",
        "a1 1: " * 682,
    ],
    ids=lambda line: line[:24],
)
def test_a_line_of_an_odd_form_hides_no_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"{line}\n{TRACEBACK}")
    verdict = diagnose_files([path])
    assert (verdict.failure_class, verdict.root_cause_line) == ("KeyError", 4)
    assert verdict.faulty_rank is None
    assert 4 in {kept.number for kept in compress([path]).kept}


def test_a_chain_without_end_is_followed_to_its_first_link(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    later = TRACEBACK.replace("KeyError: 'lr'", "ValueError: again")
    path.write_text(DIRECT.join([TRACEBACK, *[later] * 3000]))
    verdict = diagnose_files([path])
    assert (verdict.failure_class, verdict.root_cause_line) == ("KeyError", 3)


def test_a_node_list_of_billions_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"NODELIST=n[{','.join(['1-999999999'] * 300)}]\n{TRACEBACK}")
    tracemalloc.start()
    verdict = diagnose_files([path])
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert verdict.failure_class == "KeyError"
    assert peak_bytes < 32 << 20


def test_a_loop_of_retries_ends_with_what_it_raises(tmp_path: Path) -> None:
    """A KeyError that is raised while another is handled is its own reason: the last one counts."""
    path = tmp_path / "job.log"
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    path.write_text(during.join([TRACEBACK] * 300))
    assert diagnose_files([path]).root_cause_line == 299 * 6 + 3


def test_a_loss_that_rises_for_long_and_comes_back_is_judged_in_one_pass(tmp_path: Path) -> None:
    """Minutes, when each loss is compared with all behind it."""
    path, loss = tmp_path / "job.log", 1.0
    with path.open("w") as file:
        for step in range(8000):
            file.write(f"step {step} loss: {loss:.6e}\n")
            loss *= 1.0 if step < 16 else 1.013
        file.write("step 8000 loss: 0.5\n")
    assert diagnose_files([path]).failure_class == "Unknown"


def test_errors_that_are_dealt_with_are_not_collected(tmp_path: Path) -> None:
    lines = (f"WARNING retrying after ConnectionError: {n} of many" for n in range(400))
    scan = Scan(default_rules()).read(
        LogLine("x.log", n, None, line, line) for n, line in enumerate(lines, start=1)
    )
    assert 0 < len(scan.asides) < 20


def test_numbers_that_can_be_no_rank_take_no_room(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    words = [a + b for a in "bdfgkl" for b in ("ank", "ort", "ist", "ump", "elf")]
    lines = (f"[rank999999]: {first} {second} failed" for first in words for second in words)
    path.write_text("\n".join(lines))
    compressed = compress([path])
    assert len(compressed.templates) == len(words) ** 2
    assert not any(template.ranks for template in compressed.templates)
