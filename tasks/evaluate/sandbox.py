"""Runs work that executes code which a model wrote: limited memory and time, no network, no files.

The work runs in a process of its own, in a sandbox of the kernel's namespaces (a user, network, process
and mount namespace, as `unshare -rn` makes them): no network, every file read-only except a scratch
folder in memory, no way to see or to outlive other processes, no privileges. Where the kernel grants
no namespaces, a filter of system calls (seccomp) still refuses sockets, and the rest is said to be
missing. Linux only.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from configs.errors import EvaluationError
from tasks.evaluate import sandbox_kernel as kernel

Loaded = TypeVar("Loaded")

_KEPT_VARIABLES = ("PATH", "LANG", "LC_", "PYTHON", "HF_", "TQDM", "TOKENIZERS", "DISABLE_", "OMP_")
_MAX_PROCESSES = 256
_MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What the confined work may use."""

    memory_bytes: int
    """Of each process, beyond what it has when it is confined."""
    time_s: float
    scratch_bytes: int = 256 * _MIB


def confined(load: Callable[[], Loaded], act: Callable[[Loaded], Any], limits: Limits) -> Any:
    """`act(load())` in a sandbox: `load` may read and write files, `act` is confined. What `act` returns
    comes back through JSON; EvaluationError when it raises, dies or takes too long."""
    scratch = Path(tempfile.mkdtemp(prefix="ov-"))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _enter(load, act, limits, scratch, write)
    os.close(write)
    try:
        answer = json.loads(_read_all(read, limits.time_s) or b"{}")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        shutil.rmtree(scratch, ignore_errors=True)
    if "value" not in answer:
        raise EvaluationError(
            answer.get("error", "the process that ran the model's code was killed")
        )
    return answer["value"]


def _read_all(descriptor: int, time_s: float) -> bytes:
    """All that is written, until the last writer has ended; EvaluationError when that takes too long."""
    deadline, data = time.monotonic() + time_s, b""
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            raise EvaluationError(
                f"running the model's code took longer than {time_s:.0f} s (evaluate.code_timeout_s)"
            )
        block = os.read(descriptor, 1 << 16)
        if not block:
            return data
        data += block
        if data.endswith(b"\n"):
            return data


def _enter(
    load: Callable[[], Loaded],
    act: Callable[[Loaded], Any],
    limits: Limits,
    scratch: Path,
    answer: int,
) -> NoReturn:
    """The new process: makes the namespaces, in which a second one does the work."""
    try:
        os.setsid()
        isolated = kernel.unshare()
        if isolated:
            kernel.die_with_parent()
        worker = os.fork() if isolated else 0  # the first process of a process namespace
        if worker == 0:
            _answer(load, act, limits, scratch, answer, isolated=isolated)
        os.close(answer)
        os.waitpid(worker, 0)
    finally:
        os._exit(0)


def _answer(
    load: Callable[[], Loaded],
    act: Callable[[Loaded], Any],
    limits: Limits,
    scratch: Path,
    answer: int,
    *,
    isolated: bool,
) -> NoReturn:
    try:
        if isolated:
            kernel.die_with_parent()
        result: dict[str, Any]
        try:
            loaded = load()
            _confine(limits, scratch, isolated=isolated)
            result = {"value": act(loaded)}
        except EvaluationError as error:
            result = {"error": str(error)}
        except BaseException as error:
            result = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        os.write(answer, json.dumps(result).encode() + b"\n")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _confine(limits: Limits, scratch: Path, *, isolated: bool) -> None:
    for name in list(os.environ):
        if not name.startswith(_KEPT_VARIABLES):
            del os.environ[name]
    os.environ |= {"HOME": str(scratch), "TMPDIR": str(scratch), "HF_ALLOW_CODE_EVAL": "1"}
    tempfile.tempdir = str(scratch)
    missing = ["read-only files", "hidden processes"]
    if isolated:
        missing = kernel.hide_files(scratch, limits.scratch_bytes)
    os.chdir(scratch)
    if not isolated and not kernel.refuse_sockets():
        missing.append("no network")
    kernel.drop_privileges()
    if missing:
        _say(f"the model's code runs without: {', '.join(missing)} (the kernel does not grant it)")
    memory_bytes = _virtual_bytes() + limits.memory_bytes
    cpu_s = int(limits.time_s) + 1
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, limits.scratch_bytes),
        (resource.RLIMIT_CORE, 0),
        *([(resource.RLIMIT_NPROC, _MAX_PROCESSES)] if isolated else []),
    ):
        resource.setrlimit(kind, (limit, limit))


def _virtual_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
