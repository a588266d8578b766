"""Work that runs a model's code: what it can reach, what ends it, and that it cannot write its score."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.evaluate import sandbox_kernel, sandbox_reads
from tasks.evaluate.sandbox import (
    Limits,
    NoAnswerError,
    NoSandboxError,
    clean_environment,
    confined,
)

LIMITS = Limits(memory_bytes=256 << 20, time_s=60.0)
IO_URING_SETUP = 425
FORGE = """
import glob, os
places = list(range(3, 64))
for path in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        places.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        pass
for place in places:
    try:
        os.write(place, b'{"value": 99}\\n')
    except OSError:
        pass
"""

has_namespaces = subprocess.run(["unshare", "-rnpf", "true"], check=False).returncode == 0
needs_namespaces = pytest.mark.skipif(
    not has_namespaces, reason="this kernel grants no namespaces to this user"
)


def outcome(action: Callable[[], Any]) -> str:
    try:
        return repr(action())
    except (OSError, MemoryError) as error:
        return type(error).__name__


def io_uring() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(IO_URING_SETUP, 4, ctypes.create_string_buffer(120)) < 0:
        raise OSError(ctypes.get_errno(), "io_uring")
    return 0


def datagram(path: Path) -> int:
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, two:
        return one.sendto(b"x", str(path))


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def probe(folder: Path, outsider: int) -> dict[str, str]:
    """What confined code meets."""
    return {
        "network": outcome(lambda: socket.create_connection(("127.0.0.1", 9), 1.0)),
        "unix": outcome(lambda: unix_socket(folder / "socket")),
        "datagram": outcome(lambda: datagram(folder / "datagram")),
        "io_uring": outcome(io_uring),
        "memory": outcome(lambda: len(bytearray(1 << 30))),
        "file": outcome(lambda: (folder / "new").write_text("x")),
        "scratch": outcome(lambda: Path("new").write_text("x")),
        "program": outcome(lambda: subprocess.run(["echo"], check=True).returncode),
        "other": outcome(lambda: os.kill(outsider, 0)),
        "processes": outcome(lambda: sorted(p.name for p in Path("/proc").glob("[0-9]*"))),
    }


REFUSED = dict.fromkeys(("network", "unix", "datagram", "io_uring"), "PermissionError")
ALLOWED = {"memory": "MemoryError", "scratch": "1", "program": "0"}


@pytest.fixture
def outsider() -> Iterator[int]:
    """A process of the same user, outside."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Unix sockets on which somebody listens, and a file that is open for writing."""
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    stream, datagrams = (
        socket.socket(socket.AF_UNIX),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
    )
    with stream, datagrams, open("log", "w"):
        stream.bind("socket")
        stream.listen()
        datagrams.bind("datagram")
        assert outcome(lambda: unix_socket(Path("socket"))) == "None"
        assert outcome(lambda: datagram(Path("datagram"))) == "1"
        yield


@needs_namespaces
def test_confined_work_reaches_nothing(tmp_path: Path, sockets: None, outsider: int) -> None:
    found = confined(lambda: probe(tmp_path, outsider), LIMITS)
    assert found == REFUSED | ALLOWED | {
        "file": "OSError",
        "other": "ProcessLookupError",
        "processes": "['1']",
    }
    assert not (tmp_path / "new").exists()


def test_without_namespaces_it_is_refused_unless_the_config_allows(
    tmp_path: Path, sockets: None, outsider: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_kernel, "unshare", lambda: False)
    words = (
        "does not grant read-only files, hidden processes: .* evaluate.code_sandbox to best_effort"
    )
    with pytest.raises(NoSandboxError, match=words):
        confined(lambda: (tmp_path / "ran").write_text("x"), LIMITS)
    assert not (tmp_path / "ran").exists()
    found = confined(lambda: probe(tmp_path, outsider), LIMITS, required=False)
    assert found.items() >= (REFUSED | ALLOWED).items()


@needs_namespaces
@pytest.mark.parametrize("how", ["exec", "fork", "program"])
def test_code_cannot_write_its_answer(how: str) -> None:
    def run() -> int:
        if how == "exec":
            exec(FORGE)
        elif how == "fork":
            process = multiprocessing.get_context("fork").Process(target=exec, args=(FORGE,))
            process.start()
            process.join()
        else:
            subprocess.run([sys.executable, "-c", FORGE], check=True, close_fds=False)
        return 0

    assert confined(run, LIMITS) == 0


def test_secrets_are_not_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hidden-1")
    monkeypatch.setenv("SECRET", "hidden-2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    script = (
        "from tasks.evaluate.sandbox import Limits, confined\n"
        "def seen():\n"
        "    with open('/proc/self/environ') as file: return file.read()\n"
        "print(seen())\n"
        "print(confined(lambda: __import__('subprocess').run(['cat', '/proc/1/environ', "
        "'/proc/self/environ'], capture_output=True, text=True).stdout, Limits(1 << 28, 60.0)"
        f", required={has_namespaces}))"
    )
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, env=clean_environment(), capture_output=True, text=True, check=True)
    assert done.stdout.count("HF_HUB_OFFLINE=1") == 2
    assert "hidden" not in done.stdout


needs_landlock = pytest.mark.skipif(
    not sandbox_reads.is_available(), reason="this kernel has no Landlock"
)


@needs_landlock
@pytest.mark.parametrize("isolated", [True, False])
def test_other_files_cannot_be_read(
    tmp_path: Path, isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "data").write_text("of the task")
    (tmp_path / "secret").write_text("hidden")
    if not isolated:
        monkeypatch.setattr(sandbox_kernel, "unshare", lambda: False)

    def look() -> dict[str, str]:
        argv = ["cat", str(tmp_path / "secret")]
        return {
            "task": outcome((tmp_path / "task" / "data").read_text),
            "secret": outcome((tmp_path / "secret").read_text),
            "folder": outcome(lambda: [*tmp_path.iterdir()]),
            "shadow": outcome(Path("/etc/shadow").read_text),
            "program": outcome(lambda: subprocess.run(argv, capture_output=True).returncode),
            "python": outcome(
                lambda: subprocess.run([sys.executable, "-c", "import lm_eval"]).returncode
            ),
        }

    limits = Limits(1 << 30, 60.0, readable=(tmp_path / "task", tmp_path / "absent"))
    assert confined(look, limits, required=isolated and has_namespaces) == {
        "task": "'of the task'",
        "secret": "PermissionError",
        "folder": "PermissionError",
        "shadow": "PermissionError",
        "program": "1",
        "python": "0",
    }


def test_many_processes_share_one_limit_of_memory() -> None:
    """What they have inherited is shared, and counts for none of them."""
    inherited = bytearray(os.urandom(1 << 20) * 192)

    def sleep_with(size_bytes: int) -> None:
        mine = bytearray(b"x") * size_bytes
        time.sleep(1.0 if size_bytes < 1 << 20 else 60.0)
        del mine

    def all_of(size_bytes: int) -> int:
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=sleep_with, args=(size_bytes,)) for _ in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return len(inherited)

    assert confined(lambda: all_of(1000), LIMITS, required=has_namespaces) == len(inherited)
    with pytest.raises(NoAnswerError, match="took more than 256 MiB together"):
        confined(lambda: all_of(100 << 20), LIMITS, required=has_namespaces)


def passes(result: Any) -> None:
    result.append("passed")


def test_metrics_with_a_manager_work() -> None:
    """As Hugging Face's code_eval."""

    def run() -> str:
        result = multiprocessing.Manager().list()
        process = multiprocessing.get_context("fork").Process(target=passes, args=(result,))
        process.start()
        process.join()
        return str(result[0]) if result else "timed out"

    assert confined(run, LIMITS, required=has_namespaces) == "passed"


def test_limits_end_it() -> None:
    def endless() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)

    def broken() -> None:
        raise ValueError("of the task")

    required = has_namespaces
    with pytest.raises(NoAnswerError, match="took longer than 1 s"):
        confined(endless, Limits(memory_bytes=1 << 28, time_s=1.0), required=required)
    with pytest.raises(NoAnswerError, match="ValueError: of the task"):
        confined(broken, LIMITS, required=required)
    with pytest.raises(NoAnswerError, match="was killed"):
        confined(lambda: os._exit(1), LIMITS, required=required)
    with pytest.raises(NoAnswerError, match="longer than 1 MiB"):
        confined(lambda: "x" * (2 << 20), LIMITS, required=required)
    with pytest.raises(NoAnswerError, match="cannot be kept"):
        confined(lambda: float("nan"), LIMITS, required=required)
