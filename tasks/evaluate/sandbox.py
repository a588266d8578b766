"""Runs work that executes code which a model wrote: limited memory and time, no network, no writing.

Each piece of work is a process in namespaces of its own (user, network, process, IPC, mount, as
`unshare -rn` makes them), behind a filter of system calls. It has no sockets but connected pairs, no
privileges, no descriptors of its parent, and sees only its own processes. Every file is read-only except
a scratch folder and /dev/shm, which are in memory, empty and gone with it. Where the kernel has Landlock, no
other files can be read than :mod:`tasks.evaluate.sandbox_reads` lists.

What it can do: READ whatever the user who scores can read where there is no Landlock; it has no way to send
that anywhere. Exceed its memory limit for a quarter of a second by many processes together. Decide on its
own answer, if the work runs the code in its own process, as `exec` does; not on any other's.

The answer leaves by memory that is shared with the parent. It has no descriptor, and the kernel gives
it to none of the processes that the work starts. Linux only.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
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
from typing import Any, NoReturn

from configs.errors import EvaluationError
from tasks.evaluate import sandbox_filter, sandbox_manager, sandbox_memory, sandbox_reads
from tasks.evaluate import sandbox_kernel as kernel

_KEPT_VARIABLES = ("PATH", "LANG", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR")
_KEPT_PREFIXES = ("LC_", "PYTHON", "TQDM_", "OMP_", "HF_DATASETS_", "HF_EVALUATE_", "TOKENIZERS_")
_KEPT_OF_HUB = (
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_HUB_CACHE",
    "HF_MODULES_CACHE",
    "DISABLE_MULTIPROC",
)
_MAX_PROCESSES = 256
_MAX_DESCRIPTORS = 1 << 16
_MIB = 1 << 20
_MAX_ANSWER_BYTES = _MIB
_HEADER_BYTES = 8
_LOOK_S = 0.25


class SandboxError(EvaluationError):
    """There is no sandbox, or what came out of it is no answer."""


class NoSandboxError(SandboxError):
    """The kernel does not grant what the config requires."""


class NoAnswerError(SandboxError):
    """The work raised, died, took too long, or gave something that JSON cannot hold."""


@dataclass(frozen=True)
class Limits:
    """What the confined work may use."""

    memory_bytes: int
    """Of all its processes together, beyond what they have when they are confined."""
    time_s: float
    readable: tuple[Path, ...] = ()
    """Files and folders that it may read beside what programs need."""
    scratch_bytes: int = 256 * _MIB


def clean_environment() -> dict[str, str]:
    """This process's variables without any that may be a secret, for a program that is to run such work:
    what a program was started with stays to be read in its memory, whatever it removes later."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or name in _KEPT_OF_HUB or name.startswith(_KEPT_PREFIXES)
    }
    return kept | {"HF_ALLOW_CODE_EVAL": "1"}


def confined(act: Callable[[], Any], limits: Limits, *, required: bool = True) -> Any:
    """What `act` returns in a sandbox, through JSON. NoAnswerError when it raises, dies or takes too long;
    NoSandboxError when something is missing of the sandbox, unless it is not `required`."""
    scratch = Path(tempfile.mkdtemp(prefix="ov-"))
    sys.stdout.flush()
    sys.stderr.flush()
    with mmap.mmap(-1, _HEADER_BYTES + _MAX_ANSWER_BYTES) as shared:
        child = os.fork()
        if child == 0:
            _enter(act, limits, scratch, shared, required=required)
        try:
            _wait(child, limits)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            shutil.rmtree(scratch, ignore_errors=True)
        return _answered(shared)


def _wait(child: int, limits: Limits) -> None:
    descriptor = os.pidfd_open(child)
    deadline, inherited_bytes = time.monotonic() + limits.time_s, sandbox_memory.own_bytes()
    try:
        while not select.select([descriptor], [], [], min(_LOOK_S, limits.time_s))[0]:
            if time.monotonic() >= deadline:
                raise NoAnswerError(
                    f"running the model's code took longer than {limits.time_s:.0f} s "
                    "(evaluate.code_timeout_s)"
                )
            if sandbox_memory.bytes_of_all(child, inherited_bytes) > limits.memory_bytes:
                raise NoAnswerError(
                    f"the processes of the model's code took more than {limits.memory_bytes >> 20} MiB "
                    "together (evaluate.code_memory_gib)"
                )
    finally:
        os.close(descriptor)


def _answered(shared: mmap.mmap) -> Any:
    size = int.from_bytes(shared[:_HEADER_BYTES], "little")
    if size == 0:
        raise NoAnswerError("the process that ran the model's code was killed")
    try:
        answer = json.loads(shared[_HEADER_BYTES : _HEADER_BYTES + min(size, _MAX_ANSWER_BYTES)])
        if "missing" in answer:
            raise NoSandboxError(
                "the model's code cannot be confined, this kernel does not grant "
                f"{', '.join(map(str, answer['missing']))}: score on a machine that allows user namespaces "
                "(as `unshare -rn` makes them), or set evaluate.code_sandbox to best_effort"
            )
        if "error" in answer:
            raise NoAnswerError(str(answer["error"]))
        return answer["value"]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise NoAnswerError("the process that ran the model's code gave no answer") from error


def _enter(
    act: Callable[[], Any], limits: Limits, scratch: Path, shared: mmap.mmap, *, required: bool
) -> NoReturn:
    """The new process: makes the namespaces, in which a second one does the work."""
    try:
        os.setsid()
        isolated = kernel.unshare()
        kernel.die_with_parent()  # after that: new credentials end it
        worker = os.fork()  # the first process of a process namespace
        if worker == 0:
            _work(act, limits, scratch, shared, isolated=isolated, required=required)
        os.waitpid(worker, 0)
    except BaseException as error:
        _give(shared, {"error": f"the sandbox cannot be made: {_said(error)}"})
    finally:
        os._exit(0)


def _work(
    act: Callable[[], Any],
    limits: Limits,
    scratch: Path,
    shared: mmap.mmap,
    *,
    isolated: bool,
    required: bool,
) -> NoReturn:
    try:
        result: dict[str, Any]
        try:
            kernel.die_with_parent()
            missing = _confine(limits, scratch, shared, isolated=isolated)
            result = {"missing": missing} if missing and required else {"value": act()}
        except BaseException as error:
            result = {"error": _said(error)}
        _give(shared, result)
    finally:
        os._exit(0)


def _said(error: BaseException) -> str:
    if isinstance(error, EvaluationError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def _give(shared: mmap.mmap, result: dict[str, Any]) -> None:
    try:
        data = json.dumps(result, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        data = json.dumps({"error": f"its answer cannot be kept: {_said(error)}"}).encode()
    if len(data) > _MAX_ANSWER_BYTES:
        data = b'{"error": "its answer is longer than 1 MiB"}'
    shared[_HEADER_BYTES : _HEADER_BYTES + len(data)] = data
    shared[:_HEADER_BYTES] = len(data).to_bytes(_HEADER_BYTES, "little")


def _confine(limits: Limits, scratch: Path, shared: mmap.mmap, *, isolated: bool) -> list[str]:
    """Confine this process, for good; returns what the kernel did not grant."""
    readable = {*sandbox_reads.needed_paths(), *limits.readable}
    shared.madvise(mmap.MADV_DONTFORK)
    kernel.refuse_inspection()
    _close_descriptors()
    os.environ |= {"HOME": str(scratch), "TMPDIR": str(scratch)}
    tempfile.tempdir = str(scratch)
    memory_bytes = _virtual_bytes() + limits.memory_bytes
    missing = ["read-only files", "hidden processes"]
    if isolated:
        missing = kernel.hide_files(scratch, limits.scratch_bytes)
    os.chdir(scratch)
    kernel.drop_privileges()
    can_refuse = sandbox_reads.is_available()
    if can_refuse and not sandbox_reads.refuse_other_files(readable, scratch):
        missing.append("a limit on the files that can be read")
    if not sandbox_filter.refuse_calls():
        missing.append("a filter of system calls")
    multiprocessing.Manager = sandbox_manager.Manager  # type: ignore[assignment]
    cpu_s = int(limits.time_s) + 1
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, limits.scratch_bytes),
        (resource.RLIMIT_CORE, 0),
        *([(resource.RLIMIT_NPROC, _MAX_PROCESSES)] if isolated else []),
    ):
        resource.setrlimit(kind, (limit, limit))
    return missing


def _close_descriptors() -> None:
    """Nothing that is open may be written to by the model's code, nor its output fill the log."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.closerange(3, _MAX_DESCRIPTORS)


def _virtual_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
