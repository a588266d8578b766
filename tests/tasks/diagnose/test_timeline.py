"""Findings of several files on one clock, though the clocks differ; who is waited for; where a fault is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tasks.diagnose.diagnose import diagnose_files, diagnose_scan
from tasks.diagnose.logs import read_log
from tasks.diagnose.merge import merge
from tasks.diagnose.node_lists import expand_hosts
from tasks.diagnose.rules import default_rules
from tasks.diagnose.scan import Scan
from tasks.diagnose.timeline import Clock, estimate_skews
from tasks.diagnose.topology import Topology

START = datetime(2025, 3, 1, 10, 0, 0, tzinfo=UTC)


def _log(path: Path, ahead_s: float, error: str, error_after_s: float) -> Path:
    """A rank's log: 40 steps, then an error at some time of the true clock."""
    lines = [
        f"{START + timedelta(seconds=10 * n + ahead_s):%Y-%m-%d %H:%M:%S},000 step {n} loss: 2.0"
        for n in range(40)
    ]
    at = START + timedelta(seconds=error_after_s + ahead_s)
    lines.append(f"{at:%Y-%m-%d %H:%M:%S},500 ERROR train: {error}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("ahead_s", [0.0, 60.0, -60.0])
def test_the_first_error_by_the_true_clock_is_the_cause(tmp_path: Path, ahead_s: float) -> None:
    late = _log(tmp_path / "rank_0.log", 0.0, "ValueError: wrong size", 420.0)
    early = _log(tmp_path / "rank_1.log", ahead_s, "KeyError: 'lr'", 400.0)
    verdict = diagnose_files([late, early])
    assert (verdict.failure_class, verdict.faulty_rank) == ("KeyError", 1)
    swapped = diagnose_files([early, late])
    assert swapped.failure_class == "KeyError"


ERROR = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'lr'\n"


def _losses(count: int) -> str:
    times = (START + timedelta(seconds=10 * n) for n in range(count))
    return "".join(f"{t:%Y-%m-%d %H:%M:%S} step {n} loss: 2.0\n" for n, t in enumerate(times))


@pytest.mark.parametrize("names", [("rank_0", "rank_1"), ("stderr", "stdout"), ("b", "a")])
def test_losses_in_another_file_do_not_outlive_an_error_by_the_order_of_reading(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    """Of many programs the last rank alone reports, or losses go to stdout and errors to stderr."""
    failed, reports = (tmp_path / f"{name}.log" for name in names)
    failed.write_text(ERROR)
    reports.write_text(_losses(40))
    parts = [Scan(default_rules()).read(read_log(path)) for path in sorted([failed, reports])]
    for verdict in (diagnose_files(sorted([failed, reports])), diagnose_scan(merge(parts))):
        assert (verdict.failure_class, verdict.root_cause_line) == ("KeyError", 3)


def test_an_error_of_the_reporting_rank_counts_when_parts_are_merged(tmp_path: Path) -> None:
    quiet, reports = tmp_path / "rank_0.log", tmp_path / "rank_1.log"
    quiet.write_text("ready\n")
    reports.write_text(_losses(40) + ERROR)
    parts = [Scan(default_rules()).read(read_log(path)) for path in (quiet, reports)]
    verdict = diagnose_scan(merge(parts))
    assert (verdict.failure_class, verdict.root_cause_line) == ("KeyError", 43)


@pytest.mark.parametrize(("error_s", "failure_class"), [(100, "Unknown"), (390, "KeyError")])
def test_by_the_clock_an_error_is_outlived_in_another_file(
    tmp_path: Path, error_s: int, failure_class: str
) -> None:
    failed, reports = tmp_path / "rank_0.log", tmp_path / "rank_1.log"
    failed.write_text(f"{START + timedelta(seconds=error_s):%Y-%m-%d %H:%M:%S} saving\n{ERROR}")
    reports.write_text(_losses(40))
    for files in ([failed, reports], [reports, failed]):
        assert diagnose_files(files).failure_class == failure_class


def test_clocks_are_compared_by_the_steps_that_both_report() -> None:
    first = Clock(shared={step: 100.0 + step for step in range(10)})
    second = Clock(shared={step: 107.5 + step for step in range(5, 15)})
    alone = Clock(shared={99: 5.0})
    skews = estimate_skews({"a": first, "b": second, "c": alone})
    assert skews == {"a": 0.0, "b": 7.5, "c": 0.0}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu-[01-03,07],login1", ["gpu-01", "gpu-02", "gpu-03", "gpu-07", "login1"]),
        ("n1", ["n1"]),
        ("dgx-[753,756]", ["dgx-753", "dgx-756"]),
        ("a[9-11]b", ["a9b", "a10b", "a11b"]),
    ],
)
def test_node_lists_are_written_out(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "gpu-07 kernel: [1.0] NVRM: Xid (PCI:0000:ab:00): 79, gone",
        "Nov  3 10:22:10 gpu-07 kernel: NVRM: Xid (PCI:0000:ab:00): 79, gone",
        "2024-11-03T10:14:30.12+00:00 gpu-07 kernel: NVRM: Xid (PCI:0000:ab:00): 79, gone",
        "[gpuwatch] gpu-07 Nov 03 10:31:44 kernel: NVRM: Xid (PCI:0000:ab:00): 79, gone",
        "Xid errors on instance: gpu-07, Error: NVRM: Xid (PCI:0000:ab:00): 79, gone",
        "[health] gpu-07: FAIL",
    ],
)
def test_a_node_is_read_where_the_systems_log_has_it(text: str) -> None:
    assert Topology().named_in(text) == "gpu-07"
