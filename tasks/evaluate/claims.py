"""Who does which shard: claims are files that only one process can make, on any shared file system.

    claims/SHARD.0, SHARD.1, ...   the first claim, and those after its holder died without an answer
    claims/beats/NODE-PID          touched by its process as long as it lives

A claim is linked into place with its holder's name in it, so it is whole or absent. A holder that this
kernel knows is looked up by its process; one on another node is dead when it has not touched its file
for a minute by the file system's own clock. Claims of the dead are passed over by a new one.
"""

from __future__ import annotations

import json
import os
import re
import threading
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from configs.errors import EvaluationError
from configs.node import node_name

BEAT_S = 5.0
_SILENCE_S = 60.0
_DEATHS = 3
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_SPACE = Path("/proc/self/ns/pid")
_CLAIM = re.compile(r"(?P<shard>[^.].*)\.(?P<number>\d+)")


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
    worker: str = ""
    """What it is called in the plan."""
    pid_space: str = ""
    """In which process numbers mean the same: a container has its own."""

    @property
    def name(self) -> str:
        return f"{self.node}-{self.pid}-{self.started}"


def this_process(crew: str, worker: str = "") -> Holder:
    """The process that asks."""
    pid = os.getpid()
    return Holder(node_name(), _boot(), pid, _started(pid) or "", crew, worker, _pid_space())


@dataclass(frozen=True)
class Claim:
    """A claim of somebody who is alive."""

    holder: Holder
    made_at: float


class DeadlyShardError(EvaluationError):
    """Nobody should take the shard any more: too many have died of it."""


class Claims:
    """One process's view of an evaluation's claims."""

    def __init__(self, folder: Path, holder: Holder) -> None:
        self._folder = folder
        self._beats = folder / "beats"
        self._beats.mkdir(parents=True, exist_ok=True)
        self._holder = holder
        self._beat = self._beats / holder.name
        self._beat.touch()

    def keep_alive(self) -> threading.Event:
        """Touch this process's file from now on, from a thread of its own, until the event is set."""
        end = threading.Event()
        threading.Thread(
            target=self._keep_touching, args=(end,), name="claims", daemon=True
        ).start()
        return end

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
            if holder is not None and self.is_alive(holder):
                return False
            deaths += holder is not None and holder.crew == self._holder.crew
            if deaths >= _DEATHS:
                raise DeadlyShardError(
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

    def live(self, shards: Collection[str]) -> dict[str, Claim]:
        """Those of the shards that somebody alive has claimed."""
        last: dict[str, int] = {}
        with os.scandir(self._folder) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            match = _CLAIM.fullmatch(name)
            if match is not None and match["shard"] in shards:
                last[match["shard"]] = max(last.get(match["shard"], 0), int(match["number"]))
        found = {}
        for shard, number in last.items():
            claim = self._folder / f"{shard}.{number}"
            holder = _read(claim)
            if holder is not None and self.is_alive(holder):
                found[shard] = Claim(holder, claim.stat().st_mtime)
        return found

    def is_alive(self, holder: Holder) -> bool:
        """Whether the process lives, as far as can be known from here."""
        mine = self._holder
        if (holder.boot, holder.pid_space) == (mine.boot, mine.pid_space):
            return _started(holder.pid) == holder.started
        if holder.node == mine.node and holder.boot != mine.boot:
            return False  # the node was started anew
        with suppress(FileNotFoundError):
            self._beat.touch()
            silent_s = self._beat.stat().st_mtime - (self._beats / holder.name).stat().st_mtime
            return silent_s < _SILENCE_S
        return False

    def _keep_touching(self, end: threading.Event) -> None:
        while not end.wait(BEAT_S):
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


def _pid_space() -> str:
    with suppress(OSError):
        return str(_PID_SPACE.readlink())
    return ""


def _boot() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
