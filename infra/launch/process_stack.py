"""The stack of a process that need not cooperate, or else one that it prints itself.

py-spy reads it from outside, without stopping the process; it works on deadlocked and on stopped
ones. Where the kernel refuses that (ptrace), a process that has registered faulthandler on SIGUSR2
is asked to print its stacks into its log.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from configs.stacks import Frame, ProcessStack

DUMP_SIGNAL = signal.SIGUSR2
_TIMEOUT_S = 10.0
_TRIES = 3
"""Read while the process runs on, a stack can be torn."""
_PRINT_TIMEOUT_S = 3.0
_PRINT_POLL_S = 0.05
_MAX_STACK_CHARS = 100_000
_MAX_COMMAND_CHARS = 300
_PRINTED_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


def stack_of(process: psutil.Process) -> ProcessStack:
    """State and stack of a process now."""
    try:
        state, command = process.status(), " ".join(process.cmdline())[:_MAX_COMMAND_CHARS]
    except psutil.Error as gone:
        return ProcessStack(pid=process.pid, error=f"the process has ended: {gone}")
    known = ProcessStack(pid=process.pid, command=command, state=state)
    threads, error = _spy(process.pid)
    if threads:
        return known.model_copy(
            update={
                "taken_by": "py-spy",
                "frames": _main_frames(threads, process.pid),
                "stack": _text(threads)[:_MAX_STACK_CHARS],
            }
        )
    printed, why_not = _have_printed(process, state)
    if not printed:
        return known.model_copy(update={"error": f"py-spy: {error}; faulthandler: {why_not}"})
    return known.model_copy(
        update={"taken_by": "faulthandler", "frames": printed_frames(printed), "stack": printed}
    )


def is_python(process: psutil.Process) -> bool:
    """Whether the process runs a Python program."""
    try:
        return Path(process.exe()).name.startswith("python")
    except psutil.Error:
        return False


# --- from outside ---------------------------------------------------------------------------------


def _spy(pid: int) -> tuple[list[dict[str, Any]], str]:
    """py-spy's threads, or why there are none."""
    beside_python = str(Path(sys.executable).parent)
    program = shutil.which("py-spy", path=beside_python) or shutil.which("py-spy")
    if program is None:
        return [], "not installed"
    command = [program, "dump", "--nonblocking", "--full-filenames", "--json", "--pid", str(pid)]
    error = ""
    for _ in range(_TRIES):
        try:
            done = subprocess.run(
                command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S
            )
            if done.returncode == 0 and (threads := json.loads(done.stdout)):
                return list(threads), ""
            error = done.stderr.decode(errors="replace").partition("\n")[0]
        except (OSError, subprocess.TimeoutExpired, ValueError) as problem:
            error = str(problem)
    return [], error or "no Python thread"


def _main_frames(threads: list[dict[str, Any]], pid: int) -> list[Frame]:
    main = next((t for t in threads if t.get("os_thread_id") == pid), threads[0])
    return [
        Frame(function=f["name"], file=f["filename"], line=f["line"]) for f in main["frames"] or []
    ]


def _text(threads: list[dict[str, Any]]) -> str:
    lines: list[str] = []
    for thread in sorted(threads, key=lambda t: t.get("thread_name") != "MainThread"):
        state = "active" if thread.get("active") else "idle"
        lock = ", holds the interpreter lock" if thread.get("owns_gil") else ""
        lines.append(f'Thread "{thread.get("thread_name") or "?"}" ({state}{lock})')
        lines += [f"    {f['name']} ({f['filename']}:{f['line']})" for f in thread["frames"] or []]
    return "\n".join(lines)


# --- by itself ------------------------------------------------------------------------------------


def _have_printed(process: psutil.Process, state: str) -> tuple[str, str]:
    """What the process prints of itself when it is asked to, or why it does not."""
    try:
        if not _catches(process.pid, DUMP_SIGNAL):
            return "", f"it does not listen to {DUMP_SIGNAL.name}"
        log = Path(f"/proc/{process.pid}/fd/2").readlink()
        if state == psutil.STATUS_STOPPED or not log.is_file():
            return "", f"it is {state}, its output is {log}"
        start_bytes = log.stat().st_size
        process.send_signal(DUMP_SIGNAL)
        return _printed_since(log, start_bytes), "it printed nothing"
    except (OSError, psutil.Error) as error:
        return "", str(error)


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler: without, the signal would end it."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def _printed_since(log: Path, start_bytes: int) -> str:
    """The text that was added to a log, once no more comes."""
    deadline = time.monotonic() + _PRINT_TIMEOUT_S
    size = start_bytes
    while time.monotonic() < deadline:
        time.sleep(_PRINT_POLL_S)
        before, size = size, log.stat().st_size
        if size == before > start_bytes:
            break
    with open(log, "rb") as file:
        file.seek(start_bytes)
        return file.read()[:_MAX_STACK_CHARS].decode(errors="replace").strip()


def printed_frames(text: str) -> list[Frame]:
    """The main thread's frames out of faulthandler's text, where it is the last thread."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if line.startswith(("Thread 0x", "Current thread 0x")):
            frames = []
        elif match := _PRINTED_FRAME.match(line):
            frames.append(
                Frame(function=match["function"], file=match["file"], line=int(match["line"]))
            )
    return frames
