"""Starting and ending the daemons of a local cluster, each a child in a session of its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from configs.errors import OverlandError
from configs.files import write_json
from infra.launch.leash import die_with_parent
from infra.slurm.release import enter

_WAIT_S = 0.05
_END_TIMEOUT_S = 10.0
_SHOWN_LINES = 5


class ClusterError(OverlandError):
    """The local cluster could not be started or stopped."""


class Daemons:
    """The daemons of one cluster, by name; their process ids and output are in its folder."""

    def __init__(self, folder: Path, *, leash: bool, root: Path | None = None) -> None:
        self._run, self._log = folder / "run", folder / "log"
        self._leash, self._root = leash, root
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        """Held until they have ended: those of other processes are known by their records."""

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        user: str | None = None,
    ) -> None:
        """Start it unless it runs. With a leash it ends with the process that started it."""
        if self.is_up(name):
            return
        parent = os.getpid()
        if self._root is not None:
            command = enter(self._root, command, user=user, leash=self._leash)
            user = None

        def prepare() -> None:
            if self._leash:
                die_with_parent(parent)

        with open(self._log / f"{name}.out", "wb") as output:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=[] if user else None,
                preexec_fn=prepare,
            )
        self._children[name] = process
        created = psutil.Process(process.pid).create_time()
        write_json(self._record(name), {"pid": process.pid, "create_time": created})

    def process(self, name: str) -> psutil.Process | None:
        """The daemon's process, if it lives."""
        return _live_process(self._record(name))

    def is_up(self, name: str) -> bool:
        return self.process(name) is not None

    def stop(self, name: str, *, kill: bool = False) -> None:
        """End it, with SIGKILL at once or when SIGTERM does not do."""
        if (process := self.process(name)) is not None:
            with suppress(psutil.NoSuchProcess):
                process.kill() if kill else process.terminate()
            end([process], timeout_s=_END_TIMEOUT_S)
        if (child := self._children.pop(name, None)) is not None:
            child.wait()
        self._record(name).unlink(missing_ok=True)

    def wait_for(
        self, name: str, ready: Callable[[], bool], *, timeout_s: float, log: str | None = None
    ) -> None:
        """Wait until the daemon answers; ClusterError with its last words when it does not."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.is_up(name):
                raise ClusterError(f"{name} ended right after its start: {self._words(name, log)}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{name} does not answer after {timeout_s:g} s: {self._words(name, log)}"
                )
            time.sleep(_WAIT_S)

    def _record(self, name: str) -> Path:
        return self._run / f"{name}.json"

    def _words(self, name: str, log: str | None) -> str:
        lines: list[str] = []
        for path in (self._log / f"{name}.out", self._log / f"{log or name}.log"):
            if path.is_file():
                lines += path.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        return " | ".join(lines) or "it said nothing"


def _live_process(record: Path) -> psutil.Process | None:
    try:
        values = json.loads(record.read_text())
        process = psutil.Process(values["pid"])
        same = abs(process.create_time() - values["create_time"]) < 1.0
    except (FileNotFoundError, NotADirectoryError, psutil.NoSuchProcess):
        return None
    return process if same and _runs(process) else None


def end(processes: Sequence[psutil.Process], *, timeout_s: float) -> None:
    """Wait for the processes' end; SIGKILL after `timeout_s`."""
    left = _wait(processes, timeout_s)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    if left := _wait(left, timeout_s):
        raise ClusterError(f"process {left[0].pid} ({left[0].name()}) cannot be ended")


def _wait(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that still run after `timeout_s`; one that only waits for its parent does not."""
    deadline = time.monotonic() + timeout_s
    while (left := [p for p in processes if _runs(p)]) and time.monotonic() < deadline:
        time.sleep(_WAIT_S)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def steps_of(log: Path) -> list[psutil.Process]:
    """The slurmstepd that write to a node's log, and all that they have started."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.name().startswith("slurmstepd") and _has_open(process, log):
                found += [process, *process.children(recursive=True)]
    return found


def _has_open(process: psutil.Process, path: Path) -> bool:
    return any(Path(file.path) == path for file in process.open_files())
