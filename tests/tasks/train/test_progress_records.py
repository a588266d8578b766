from __future__ import annotations

import os
from pathlib import Path

import pytest

from configs.progress import PHASES, PROGRESS_VARIABLE, read_position, record_path
from tasks.train.progress import Progress


def test_each_phase_can_be_read_from_outside(tmp_path: Path) -> None:
    progress = Progress.open(3, {PROGRESS_VARIABLE: str(tmp_path)})
    path = record_path(tmp_path, 3)
    seen = [read_position(path)]
    for step in (7, 8):
        progress.begin_step(step)
        seen.append(read_position(path))
        for phase in PHASES[2:]:
            progress.enter(phase)
            seen.append(read_position(path))
    positions = [position for position in seen if position is not None]
    assert [(p.step, p.phase) for p in positions[:4]] == [
        (0, "start"),
        (7, "data"),
        (7, "forward_backward"),
        (7, "gradients"),
    ]
    assert (positions[-1].step, positions[-1].phase) == (8, PHASES[-1])
    assert {(p.rank, p.pid) for p in positions} == {(3, os.getpid())}
    orders = [p.order for p in positions]
    assert orders == sorted(orders)
    times = [p.since for p in positions]
    assert times == sorted(times)


def test_a_new_process_takes_the_record_over(tmp_path: Path) -> None:
    environment = {PROGRESS_VARIABLE: str(tmp_path)}
    Progress.open(0, environment).begin_step(9)
    Progress.open(0, environment)
    position = read_position(record_path(tmp_path, 0))
    assert position is not None
    assert (position.step, position.phase) == (0, "start")


def test_without_a_folder_it_is_kept_for_nobody(tmp_path: Path) -> None:
    progress = Progress.open(0, {})
    progress.begin_step(1)
    progress.enter("optimizer")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"OVPR", b"x" * 48, b"\0" * 48])
def test_what_is_no_record_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank"
    path.write_bytes(content)
    assert read_position(path) is None
    assert read_position(tmp_path / "absent") is None


def test_unknown_phases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        Progress.open(0, {}).enter("lunch")
