"""The display beside a run: a live panel on a terminal, plain lines everywhere else.

A background thread looks at the run directory, prints what happened and redraws the panel. The run
never waits for it: a slow or broken terminal ends the display, not the run. The panel leaves the
cursor visible, so that a terminal is usable even after the process was killed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from configs.rundir import RunDir
from flows.show import words
from flows.show.notices import Notice, notices, progress_line, where_it_stands
from flows.show.panel import panel
from flows.show.state import RunView, Snapshot

PLAIN_INTERVAL_S = 10.0
PLAIN_SHARE = 0.1
_LONGEST_PLAIN_INTERVAL_S = 600.0
_JOIN_TIMEOUT_S = 5.0

_active: list[ProgressDisplay] = []


def wants_plain(stream: TextIO) -> bool:
    """Whether `stream` is no terminal that can redraw lines: a pipe, a file, a dumb terminal."""
    return not stream.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown")


def say(text: str) -> None:
    """Show a message of a flow, above the live panel where there is one, else on stderr."""
    notice = Notice(time.time(), words.clean(text, 1000))
    if _active and _active[-1].running:
        _active[-1].put(notice)
    else:
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed
            print(_plain(notice), file=sys.stderr, flush=True)


@contextmanager
def show_progress(
    run: RunDir,
    *,
    total_steps: int | None = None,
    stream: TextIO | None = None,
    plain: bool | None = None,
    interval_s: float = 0.5,
) -> Iterator[ProgressDisplay]:
    """Show the run while the block runs. `stream` is stderr, `plain` is what suits it by default."""
    stream = sys.stderr if stream is None else stream
    plain = wants_plain(stream) if plain is None else plain
    display = ProgressDisplay(run, total_steps, stream, plain=plain, interval_s=interval_s)
    display.start()
    _active.append(display)
    try:
        yield display
    finally:
        _active.remove(display)
        display.stop()


class ProgressDisplay:
    """One run's display and its thread."""

    def __init__(
        self,
        run: RunDir,
        total_steps: int | None,
        stream: TextIO,
        *,
        plain: bool,
        interval_s: float,
    ) -> None:
        self._run = run
        self._view = RunView(run, total_steps=total_steps)
        self._stream = stream
        self._plain = plain
        self._interval_s = interval_s
        self._messages: queue.SimpleQueue[Notice] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._main, name="overland-progress", daemon=True)

    @property
    def running(self) -> bool:
        """Whether messages still reach the terminal through this display."""
        return self._thread.is_alive() and not self._ended.is_set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, notice: Notice) -> None:
        """Show a line at the next refresh; never waits."""
        self._messages.put(notice)

    def stop(self) -> None:
        """Show what is left and give the terminal back; waits for a stuck terminal only so long."""
        self._ended.set()
        self._thread.join(_JOIN_TIMEOUT_S)

    def _main(self) -> None:
        try:
            surface = _PlainSurface(self._stream) if self._plain else _LiveSurface(self._stream)
            with surface:
                self._follow(surface)
        except Exception as error:  # a view of the run must not end the run
            line = f"progress display stopped: {words.clean(str(error) or repr(error))}"
            with contextlib.suppress(OSError, ValueError):
                print(line, file=self._stream, flush=True)

    def _follow(self, surface: _PlainSurface | _LiveSurface) -> None:
        before = self._view.refresh()
        if line := where_it_stands(before):
            surface.lines([Notice(before.time, line)])
        while True:
            ended = self._ended.wait(self._interval_s)
            now = self._view.refresh()
            surface.lines(sorted([*notices(before, now), *self._taken()], key=lambda n: n.time))
            surface.draw(now, self._run.path.name, last=ended)
            if ended:
                return
            before = now

    def _taken(self) -> list[Notice]:
        taken = []
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self._messages.get_nowait())
        return taken


class _PlainSurface:
    """Lines for a pipe, a file or a log: no colors, nothing is drawn over."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: Snapshot | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def lines(self, found: list[Notice]) -> None:
        if found:
            self._stream.write("".join(_plain(notice) + "\n" for notice in found))
            self._stream.flush()

    def draw(self, snapshot: Snapshot, name: str, *, last: bool) -> None:
        del name
        if _is_progress_due(self._shown, snapshot, last=last):
            self.lines([Notice(snapshot.time, progress_line(snapshot))])
            self._shown = snapshot


class _LiveSurface:
    """A panel at the bottom of a terminal; lines scroll above it."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # a piped stdout is for results
            redirect_stderr=True,
        )

    def __enter__(self) -> None:
        self._live.start()
        self._console.show_cursor(True)

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def lines(self, found: list[Notice]) -> None:
        for notice in found:
            line = Table.grid(padding=(0, 2))
            line.add_row(Text(words.clock(notice.time), "dim"), Text(notice.text, notice.style))
            self._console.print(line)

    def draw(self, snapshot: Snapshot, name: str, *, last: bool) -> None:
        if last:
            if snapshot.step:
                self.lines([Notice(snapshot.time, progress_line(snapshot))])
        else:
            self._live.update(panel(snapshot, name, self._console.width), refresh=True)


def _plain(notice: Notice) -> str:
    return f"{words.clock(notice.time)}  {notice.text}"


def _is_progress_due(shown: Snapshot | None, now: Snapshot, *, last: bool) -> bool:
    """Steps were made, and a tenth of the run or some time has passed; more time in a long run."""
    if now.step == 0 or (shown is not None and now.step == shown.step):
        return False
    if shown is None or last:
        return True
    due_s = min(max(PLAIN_INTERVAL_S, (now.time_left_s or 0.0) / 100), _LONGEST_PLAIN_INTERVAL_S)
    if now.time - shown.time >= due_s:
        return True
    return now.total_steps is not None and now.step - shown.step >= PLAIN_SHARE * now.total_steps
