"""Findings of several files on one clock, though the clocks differ; who is waited for; where a fault is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tasks.diagnose.diagnose import diagnose_files
from tasks.diagnose.timeline import Clock, estimate_skews
from tasks.diagnose.topology import Topology, expand_hosts

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
