"""Who does which shard: claims are files that only one process can make, on any shared file system.

    claims/SHARD.0, SHARD.1, ...   the first claim, and those after its holder died without an answer
    claims/beats/NODE-PID          touched by its process as long as it lives

A claim is linked into place with its holder's name in it, so it is whole or absent. A holder on this
node is looked up by its process; one on another node is dead when it has not touched its file for a
minute by the file system's own clock. Claims of the dead are passed over by a new one.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from configs.errors import EvaluationError
from configs.node import node_name

BEAT_S = 5.0
_SILENCE_S = 60.0
_DEATHS = 3
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Holder:
    """A process that takes shards."""

    node: str
    boot: str
    pid: int
    started: str
    """When the process began, in the kernel's ticks: a number is given to another process later."""
    crew: str
    """Who started it: the deaths that one crew sees on a shard are counted."""

    @property
    def name(self) -> str:
        return f"{self.node}-{self.pid}-{self.started}"


def this_process(crew: str) -> Holder:
    """The process that asks."""
    pid = os.getpid()
    return Holder(node_name(), _boot(), pid, _started(pid) or "", crew)


class Claims:
    """One process's view of an evaluation's claims."""

    def __init__(self, folder: Path, holder: Holder) -> None:
        self._folder = folder
        self._beats = folder / "beats"
        self._beats.mkdir(parents=True, exist_ok=True)
        self._holder = holder
        self._beat = self._beats / holder.name
        self._beat.touch()

    def keep_alive(self) -> None:
        """Touch this process's file from now on, from a thread of its own."""
        threading.Thread(target=self._keep_touching, name="claims", daemon=True).start()

    def take(self, shard: str) -> bool:
        """Claim the shard; False when somebody alive has it.

        EvaluationError when it has been the end of several workers: it would be that of all.
        """
        deaths = 0
        for number in range(1 << 30):
            path = self._folder / f"{shard}.{number}"
            if self._make(path):
                return True
            holder = _read(path)
            if holder is not None and self._is_alive(holder):
                return False
            deaths += holder is not None and holder.crew == self._holder.crew
            if deaths >= _DEATHS:
                raise EvaluationError(
                    f"shard {shard} was the end of {deaths} workers: see what they said last"
                )
        raise AssertionError("unreachable")

    def _make(self, path: Path) -> bool:
        if path.exists():
            return False
        temporary = self._folder / f".{uuid.uuid4().hex}.tmp"
        temporary.write_text(json.dumps(asdict(self._holder)))
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def _is_alive(self, holder: Holder) -> bool:
        if holder.node == self._holder.node:
            return holder.boot == self._holder.boot and _started(holder.pid) == holder.started
        with suppress(FileNotFoundError):
            self._beat.touch()
            silent_s = self._beat.stat().st_mtime - (self._beats / holder.name).stat().st_mtime
            return silent_s < _SILENCE_S
        return False

    def _keep_touching(self) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_S):
            with suppress(OSError):  # a new plan removes the folder
                self._beat.touch()


def _read(path: Path) -> Holder | None:
    with suppress(FileNotFoundError, ValueError, TypeError):
        return Holder(**json.loads(path.read_text()))
    return None


def _started(pid: int) -> str | None:
    """Field 22 of the process's stat; None when there is no such process, or only its remains."""
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    return None


def _boot() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
