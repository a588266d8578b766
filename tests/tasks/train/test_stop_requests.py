from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.rundir import RunDir
from tasks.train import stop
from tasks.train.stop import StopRequests


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The process has its signals back afterwards."""
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "_LOOK_INTERVAL_S", 0.0)


def test_nothing_asks(tmp_path: Path) -> None:
    assert StopRequests(RunDir(tmp_path), rank=0).requested == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda n: n.name)
def test_a_signal_asks_on_every_rank(tmp_path: Path, number: signal.Signals) -> None:
    requests = StopRequests(RunDir(tmp_path), rank=3)
    os.kill(os.getpid(), number)
    assert requests.requested == number.name


def test_sigterm_is_the_more_urgent(tmp_path: Path) -> None:
    requests = StopRequests(RunDir(tmp_path), rank=0)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        os.kill(os.getpid(), number)
    assert requests.requested == "SIGTERM"


@pytest.mark.usefixtures("no_wait")
def test_rank_0_looks_for_the_file(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    first, second = StopRequests(run, rank=0), StopRequests(run, rank=1)
    run.stop_path.touch()
    assert (first.requested, second.requested) == ("stop file", "")
    run.stop_path.unlink()
    assert first.requested == "stop file"  # All ranks may know already.


def test_it_does_not_look_in_every_step(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    requests = StopRequests(run, rank=0)
    assert requests.requested == ""
    run.stop_path.touch()
    assert requests.requested == ""


def test_a_warning_that_came_too_early_is_not_lost(tmp_path: Path) -> None:
    """The agent starts ranks with SIGUSR1 blocked: it would end them."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from configs.rundir import RunDir\n"
        "from tasks.train.stop import StopRequests\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "print(StopRequests(RunDir(Path(sys.argv[1])), rank=0).requested)\n"
    )
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        command = [sys.executable, "-c", code, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert (done.returncode, done.stdout) == (0, "SIGUSR1\n"), done.stderr
