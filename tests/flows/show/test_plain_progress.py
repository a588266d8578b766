"""The display in a pipe, in a terminal, and beside a terminal that breaks."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic_run import SyntheticRun, crashed_and_recovered, loss_at

from configs.events import SnapshotEvent
from configs.rundir import write_record
from flows.show import progress
from flows.show.notices import notices, progress_line
from flows.show.progress import say, show_progress, wants_plain
from flows.show.state import RunView
from tests.waiting import wait_until

INTERVAL_S = 0.02


def texts(made: SyntheticRun, view: RunView, *changes: Callable[[], None]) -> list[str]:
    before = view.refresh()
    for change in changes:
        change()
    return [notice.text for notice in notices(before, view.refresh())]


def test_every_event_is_told_once(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    view = RunView(made.run)
    assert texts(made, view, made.prepare) == [
        "prepared 10,000 documents (31 duplicates and 2 empty dropped): 1.22M tokens, "
        "vocabulary 4,096, 11 s"
    ]
    assert texts(made, view, lambda: made.submit(1), lambda: made.start(1)) == [
        "attempt 1 submitted (job 4701)",
        "attempt 1 starts at step 0: 1.33M parameters, 2 processes, cpu, fp32",
    ]
    assert texts(made, view, lambda: made.train(1, 1, 60)) == [
        "checkpoint of step 50 committed (43.1 MB, 0.5 s)"
    ]
    assert texts(made, view, lambda: made.inject(1, 61), lambda: made.crash(1)) == [
        "attempt 1: injecting fault: kill on rank 1 at step 61",
        "attempt 1 failed after step 60: signal SIGKILL",
        'verdict: NodeFailure, rank 1 on node-a: "[rank1]: process was killed by SIGKILL"',
        "action: restart on the same nodes: restart 1 of 10",
    ]
    skipped = {"step_00000060": "2 files are missing"}
    assert texts(made, view, lambda: made.submit(2), lambda: made.start(2, 50, skipped)) == [
        "attempt 2 submitted (job 4702)",
        "checkpoint step_00000060 is passed over: 2 files are missing",
        "attempt 2 restarts from step 50: 1.33M parameters, 2 processes, cpu, fp32",
    ]
    assert texts(made, view, lambda: made.fail_save(2, 100)) == [
        "checkpoint of step 100 could not be saved: No space left on device"
    ]
    assert texts(made, view, lambda: made.score(50, 0.3)) == [
        "evaluation of step 50: heldout_cloze acc 0.3000, heldout_perplexity bits_per_byte 2.7000"
    ]
    assert texts(made, view, lambda: made.fail_evaluation(100)) == [
        "evaluation of step 100 failed in infer: exit code 1"
    ]
    assert texts(made, view, lambda: made.end(2, "completed")) == ["attempt 2 completed"]
    assert texts(made, view) == []


def test_a_snapshot_that_a_restart_goes_without_is_told(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    view = RunView(made.run)
    made.submit(1)
    made.start(1)
    made.train(1, 1, 60)
    made.event(1, SnapshotEvent(time=made.clock, step=60, outcome="begun", blocked_s=0.1))
    made.crash(1)
    assert texts(made, view, lambda: made.submit(2), lambda: made.start(2, 50))[1:] == [
        "the snapshot of step 60 in the node's memory is passed over: it is gone, or not whole on "
        "every rank",
        "attempt 2 restarts from step 50: 1.33M parameters, 2 processes, cpu, fp32",
    ]
    made.event(2, SnapshotEvent(time=made.clock, step=60, outcome="begun", blocked_s=0.1))
    made.crash(2)
    action = made.run.attempt(2).action()
    assert action is not None
    wanted = action.model_copy(update={"rollback_to_step": 50})
    write_record(made.run.attempt(2).action_path, wanted)
    assert texts(made, view, lambda: made.submit(3), lambda: made.start(3, 50)) == [
        "attempt 3 submitted (job 4703)",
        "attempt 3 restarts from step 50: 1.33M parameters, 2 processes, cpu, fp32",
    ]


def test_a_stop_says_so(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    made.submit(1)
    view = RunView(made.run)
    ended = texts(made, view, lambda: made.end(1, "failed", reason="TIMEOUT"))
    assert ended == ["attempt 1 failed before its first step: TIMEOUT"]
    assert texts(made, view, lambda: made.decide(1, stop=True))[-1] == (
        "action: stop: the budget of 3 restarts for NodeFailure is spent"
    )


def test_progress_line(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run", steps=200)
    made.submit(1)
    made.start(1)
    made.train(1, 1, 60)
    line = progress_line(RunView(made.run).refresh())
    loss, validation = f"{loss_at(60):.4f}", f"{loss_at(50) + 0.1:.4f}"
    assert line == (
        f"step 60/200 (30%)  loss {loss}  validation loss {validation}  4.10k tokens/s  1m 12s left"
    )


def test_plain_lines_of_a_whole_run(tmp_path: Path) -> None:
    stream = io.StringIO()
    made = SyntheticRun(tmp_path / "run")
    with show_progress(made.run, total_steps=200, stream=stream, plain=True, interval_s=INTERVAL_S):
        say("corpus unchanged: data is reused")
        crashed_and_recovered(tmp_path / "run")
    output = stream.getvalue()
    assert "\x1b" not in output and "\r" not in output
    lines = output.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d  \S", line) for line in lines)
    for part in (
        "corpus unchanged: data is reused",
        "attempt 1 failed after step 129: signal SIGKILL",
        "attempt 2 restarts from step 100",
        "checkpoint of step 200 committed",
        "evaluation of step 200: heldout_cloze acc 0.3500",
        "step 200/200 (100%)",
    ):
        assert sum(part in line for line in lines) == 1, part


def test_plain_progress_lines_come_at_tenths_of_the_run(tmp_path: Path) -> None:
    stream = io.StringIO()
    made = SyntheticRun(tmp_path / "run", steps=100)
    made.submit(1)
    made.start(1)
    with show_progress(made.run, total_steps=100, stream=stream, plain=True, interval_s=0.001):
        for step in range(1, 101):
            made.step(1, step)
            time.sleep(0.005)
    progress_lines = [line for line in stream.getvalue().splitlines() if "  step " in line]
    assert 3 <= len(progress_lines) <= 12


def test_work_done_before_is_summed_up_not_repeated(tmp_path: Path) -> None:
    made = crashed_and_recovered(tmp_path / "run")
    stream = io.StringIO()
    with show_progress(made.run, total_steps=200, stream=stream, plain=True, interval_s=INTERVAL_S):
        pass
    assert "found in the run directory: data prepared, step 200 of 200, 2 attempts" in (
        stream.getvalue()
    )
    assert "submitted" not in stream.getvalue()


class _BrokenStream(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_broken_stream_ends_the_display_and_not_the_run(tmp_path: Path) -> None:
    made = crashed_and_recovered(tmp_path / "run")
    with show_progress(
        made.run, total_steps=200, stream=_BrokenStream(), plain=True, interval_s=INTERVAL_S
    ) as display:
        wait_until(lambda: not display.running, "the display to end")
        say("the run goes on")


def test_an_error_of_the_display_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = SyntheticRun(tmp_path / "run")
    stream = io.StringIO()

    def fail(self: RunView, now: float | None = None) -> None:
        raise PermissionError("attempts/ may not be read")

    monkeypatch.setattr(RunView, "refresh", fail)
    with show_progress(made.run, total_steps=1, stream=stream, plain=True, interval_s=1) as display:
        wait_until(lambda: not display.running, "the display to end")
        say("still told")
    assert stream.getvalue() == "progress display stopped: attempts/ may not be read\n"
    assert "still told" in capsys.readouterr().err


def test_an_exception_of_the_run_passes_through(tmp_path: Path) -> None:
    made = SyntheticRun(tmp_path / "run")
    stream = io.StringIO()
    with (
        pytest.raises(ZeroDivisionError),
        show_progress(made.run, total_steps=1, stream=stream, plain=True, interval_s=60),
    ):
        say("last words")
        raise ZeroDivisionError
    assert "last words" in stream.getvalue()


def test_say_without_a_display_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    say("plain \x1b[31mred\x1b[0m\nline")
    assert re.fullmatch(r"\d\d:\d\d:\d\d  plain red line\n", capsys.readouterr().err)


def test_plain_is_for_everything_but_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wants_plain(io.StringIO())
    leader, follower = pty.openpty()
    with os.fdopen(leader, "rb"), os.fdopen(follower, "w") as stream:
        monkeypatch.setenv("TERM", "xterm-256color")
        assert not wants_plain(stream)
        monkeypatch.setenv("TERM", "dumb")
        assert wants_plain(stream)


class _Terminal:
    """A pseudo-terminal and what was written to it."""

    def __init__(self) -> None:
        self._leader, follower = pty.openpty()
        self.stream = os.fdopen(follower, "w")
        self.written = b""
        self._reader = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                block = os.read(self._leader, 65536)
            except OSError:  # the other end was closed
                return
            self.written += block

    def close(self) -> str:
        self.stream.close()
        self._reader.join(10)
        os.close(self._leader)
        return self.written.decode()


def test_the_panel_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    terminal = _Terminal()
    terminal.start()
    made = SyntheticRun(tmp_path / "run")
    stdout, stderr = sys.stdout, sys.stderr
    with show_progress(
        made.run, total_steps=200, stream=terminal.stream, plain=False, interval_s=INTERVAL_S
    ):
        made.submit(1)
        made.start(1)
        made.train(1, 1, 60)
        wait_until(lambda: b"60/200 steps" in terminal.written, "steps")
        made.crash(1)
        wait_until(lambda: b"last: " in terminal.written, "the failure")
    assert (sys.stdout, sys.stderr) == (stdout, stderr)
    written = terminal.close()
    for part in ("verdict: NodeFailure, rank 1", "restarting", "step 50, ", "4.10k tokens/s"):
        assert part in written
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l")  # the cursor is visible


def test_a_stuck_terminal_does_not_hold_the_run_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(progress, "_JOIN_TIMEOUT_S", 0.2)
    terminal = _Terminal()  # nobody reads
    made = SyntheticRun(tmp_path / "run")
    with show_progress(
        made.run, total_steps=200, stream=terminal.stream, plain=False, interval_s=0.001
    ) as display:
        for _ in range(400):
            say("x" * 80)
        time.sleep(0.3)
    assert display.running is False
    terminal.start()
    display._thread.join(20)
    assert not display._thread.is_alive()
    terminal.close()
