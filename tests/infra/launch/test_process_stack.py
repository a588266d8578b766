"""Stacks of real processes, taken from outside or printed by themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from infra.launch import process_stack
from infra.launch.process_stack import stack_of
from tests.waiting import wait_until

WAITS = """
import faulthandler, signal, sys, threading, time
if sys.argv[1] == "prints":
    faulthandler.register(signal.SIGUSR2, all_threads=True)
def aside():
    time.sleep(600)
def main():
    print("ready", flush=True)
    time.sleep(600)
threading.Thread(target=aside, daemon=True).start()
main()
"""


@contextmanager
def waiting(tmp_path: Path, kind: str) -> Iterator[psutil.Process]:
    log = tmp_path / "log"
    (tmp_path / "waits.py").write_text(WAITS)
    with open(log, "w") as output:
        process = subprocess.Popen(
            [sys.executable, str(tmp_path / "waits.py"), kind], stdout=output, stderr=output
        )
    try:
        wait_until(lambda: log.read_text() != "", "the process")
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def test_from_outside(tmp_path: Path) -> None:
    with waiting(tmp_path, "silent") as process:
        stack = stack_of(process)
    assert (stack.taken_by, stack.error) == ("py-spy", "")
    assert [frame.function for frame in stack.frames] == ["main", "<module>"]
    assert stack.frames[0].file == str(tmp_path / "waits.py")
    assert "aside" in stack.stack
    assert "waits.py" in stack.command


def test_printed_by_the_process_where_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_stack.shutil, "which", lambda *_, **__: None)
    with waiting(tmp_path, "prints") as process:
        stack = stack_of(process)
    assert stack.taken_by == "faulthandler"
    assert [frame.function for frame in stack.frames] == ["main", "<module>"]
    assert stack.frames[0].file == str(tmp_path / "waits.py")
    assert "aside" in stack.stack


def test_a_process_that_would_die_of_the_signal_does_not_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_stack.shutil, "which", lambda *_, **__: None)
    with waiting(tmp_path, "silent") as process:
        stack = stack_of(process)
        assert process.is_running()
        assert process.status() != psutil.STATUS_ZOMBIE
    assert stack.taken_by == ""
    assert stack.error == "py-spy: not installed; faulthandler: it does not listen to SIGUSR2"


def test_a_process_that_is_no_more() -> None:
    child = subprocess.Popen(["/bin/sleep", "600"])
    process = psutil.Process(child.pid)
    child.kill()
    child.wait()
    assert "the process has ended" in stack_of(process).error
