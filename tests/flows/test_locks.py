"""One live flow a stage; and a flow that waits for the one before it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from configs.errors import RunDirectoryError
from configs.files import file_lock
from configs.rundir import RunDir
from flows.locks import first_in_line, held, holds, waited_since


def test_a_second_flow_is_refused_or_waits(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    first_is_over, second_is_in = threading.Event(), threading.Event()
    said: list[str] = []

    def second() -> None:
        with held(run, "pretrain", wait=True, say=said.append):
            assert first_is_over.is_set()
            assert (waited_since(run) or 0.0) >= began_at
            second_is_in.set()

    began_at = time.time()
    with file_lock(run.locks_dir / "pretrain"):
        with pytest.raises(RunDirectoryError, match="in use by a live run"), held(run, "pretrain"):
            pass
        thread = threading.Thread(target=second)
        thread.start()
        assert not second_is_in.wait(1.5)
        first_is_over.set()
    assert second_is_in.wait(30)
    thread.join()
    assert not holds(run, "pretrain")
    assert len(said) == 1 and said[0].startswith(f"waiting for {tmp_path}, which a live run uses")
    with held(run, "pretrain"):
        assert waited_since(run) is None


def test_several_that_wait_come_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has just seen the lock free, and one of them is faster."""
    monkeypatch.setattr("flows.locks.is_locked", lambda _: False)
    run = RunDir(tmp_path)
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        with held(run, "pretrain", wait=True):
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)

    with file_lock(run.locks_dir / "pretrain"):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


def test_one_that_waits_is_enough(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with first_in_line(run, "evaluate") as first, first_in_line(run, "evaluate") as second:
        assert (first, second) == (True, False)
    with first_in_line(run, "evaluate") as again:
        assert again
