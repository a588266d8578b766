"""Copies a model once to this node, near its workers: into shared memory, else to its disk.

    /dev/shm/overland-UID/models/IDENTITY/        the files, and STAGED.json when they are whole
    /dev/shm/overland-UID/models/IDENTITY.lock    held by all who use them; free: may be removed

The copy reads its source at no more than the given rate, hashes what it reads, reads back what it has
written and compares. Who comes second finds the copy there. What nobody holds (its users have ended or
were killed) is removed by the last user, or by the next to stage anything on the node.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from configs.errors import EvaluationError
from configs.files import sha256_of_file
from configs.records import Record
from configs.rundir import read_record, write_record
from tasks.evaluate.memory import available_memory_bytes
from tasks.evaluate.model_folder import model_files

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (node memory is what is wanted)
PLACES = ("memory", "disk")
"""In which the copy is tried, in this order."""
_BLOCK_BYTES = 4 << 20
_SPARE_BYTES = 64 << 20
_LONGEST_SLEEP_S = 0.25
"""A signal that another thread takes, or that comes just before a sleep, is answered only after it."""
_TRIES = 2
_MIB = 1 << 20


class Staged(Record):
    """STAGED.json, and what a precursor answers: where a model lies and what it cost to get it there."""

    path: str
    place: str
    """memory, disk, or source: it is read where it is."""
    size_bytes: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0
    sha256: Mapping[str, str] = {}
    """File -> hash of its bytes."""


class NoRoomError(Exception):
    """The copy does not fit here."""


@contextmanager
def staged(
    source: Path,
    identity: str,
    *,
    mib_per_s: float | None = None,
    places: list[tuple[str, Path]] | None = None,
    skip: Collection[str] = (),
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Iterator[Staged]:
    """The model near its workers, as long as the block runs; where there is no room, where it is.

    `skip` names places in which it is not tried.
    """
    for name, base in _places() if places is None else places:
        if name in skip:
            say(f"the model is not copied to {name}: an earlier copy was killed there")
            continue
        root = base / f"overland-{os.getuid()}" / "models"
        if name == "disk" and _same_disk(source, base):
            continue  # a second copy on the disk where it is already would gain nothing
        try:
            with _held(root, source, identity[:32], name, mib_per_s) as copy:
                yield copy
                return
        except NoRoomError as error:
            say(f"the model is not copied to {name}: {error}")
    say(f"the model is read from {source}")
    yield Staged(path=str(source), place="source")


def clear_all_unused() -> None:
    """Remove this node's copies that nobody holds, wherever they are."""
    for _, base in _places():
        clear_unused(base)


def clear_unused(base: Path) -> None:
    """Remove the copies that nobody holds."""
    root = base / f"overland-{os.getuid()}" / "models"
    for lock in root.glob("*.lock"):
        with _opened(lock) as descriptor:
            _remove_if_free(descriptor, lock)


def _places() -> list[tuple[str, Path]]:
    return list(zip(PLACES, (SHARED_MEMORY, Path(tempfile.gettempdir())), strict=True))


def _same_disk(source: Path, base: Path) -> bool:
    return source.stat().st_dev == base.stat().st_dev


@contextmanager
def _held(
    root: Path, source: Path, identity: str, place: str, mib_per_s: float | None
) -> Iterator[Staged]:
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock, folder = root / f"{identity}.lock", root / identity
    for other in root.glob("*.lock"):
        if other != lock:
            with _opened(other) as descriptor:
                _remove_if_free(descriptor, other)
    copies = 0
    while True:
        with _opened(lock) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            copy = _whole(folder) if _is_file_of(descriptor, lock) else None
            if copy is not None:
                try:
                    yield copy
                finally:
                    _remove_if_free(descriptor, lock)
                return
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # one makes the copy; then all look again
            if _is_file_of(descriptor, lock) and _whole(folder) is None:
                if copies == _TRIES:
                    raise EvaluationError(f"{folder} does not stay whole: what else writes there?")
                copies += 1
                try:
                    _copy(source, folder, place, mib_per_s)
                except BaseException:  # whoever is told to end, too, leaves nothing behind
                    _remove_if_free(descriptor, lock)
                    raise


@contextmanager
def _opened(lock: Path) -> Iterator[int]:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_if_free(descriptor: int, lock: Path) -> None:
    """Remove the copy of this lock unless somebody else holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if _is_file_of(descriptor, lock):
        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
        lock.unlink()


def _is_file_of(descriptor: int, path: Path) -> bool:
    """Whether the descriptor is of the file that has this name now."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _whole(folder: Path) -> Staged | None:
    """The copy in the folder, if all of its files are there in their length."""
    copy = read_record(folder / "STAGED.json", Staged)
    if copy is None or not all((folder / name).is_file() for name in copy.sha256):
        return None
    size_bytes = sum((folder / name).stat().st_size for name in copy.sha256)
    return copy if size_bytes == copy.size_bytes else None


def _copy(source: Path, folder: Path, place: str, mib_per_s: float | None) -> None:
    before = _versions(source)
    size_bytes = sum(size for size, _ in before.values())
    shutil.rmtree(folder, ignore_errors=True)
    _require_room(folder.parent, size_bytes)
    started_at, pace = time.time(), _Pace(mib_per_s)
    try:
        sha256 = {str(name): _copy_file(source / name, folder / name, pace) for name in before}
        _refuse_changed(source, before)
    except OSError as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise EvaluationError(f"the model cannot be copied: {error}") from error
        raise NoRoomError(f"{error.strerror} in {folder.parent}") from error
    copy = Staged(
        path=str(folder),
        place=place,
        size_bytes=size_bytes,
        started_at=started_at,
        ended_at=time.time(),
        sha256=sha256,
    )
    write_record(folder / "STAGED.json", copy)


def _versions(source: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of each file that is copied."""
    statuses = {name: (source / name).stat() for name in model_files(source)}
    return {name: (status.st_size, status.st_mtime_ns) for name, status in statuses.items()}


def _refuse_changed(source: Path, before: dict[Path, tuple[int, int]]) -> None:
    """EvaluationError when what was copied may be half of one model and half of another."""
    now = _versions(source)
    changed = sorted(str(n) for n in {*before, *now} if before.get(n) != now.get(n))
    if changed:
        raise EvaluationError(
            f"the model in {source} changes while it is copied ({changed[0]}): evaluate it when it is "
            "whole"
        )


def _require_room(root: Path, size_bytes: int) -> None:
    """NoRoomError when the copy does not fit; node memory must also hold what is loaded out of it."""
    free_bytes = shutil.disk_usage(root).free
    if root.is_relative_to(SHARED_MEMORY):
        free_bytes = min(free_bytes, available_memory_bytes() - size_bytes)
    if free_bytes < size_bytes + _SPARE_BYTES:
        raise NoRoomError(
            f"{root} has room for {max(free_bytes, 0) // _MIB} MiB, the model has {size_bytes // _MIB}"
        )


class _Pace:
    """Keeps reading below a rate, over all files together."""

    def __init__(self, mib_per_s: float | None) -> None:
        self._bytes_per_s = mib_per_s * _MIB if mib_per_s else None
        self._begun = time.monotonic()
        self._read_bytes = 0

    def after(self, read_bytes: int) -> None:
        self._read_bytes += read_bytes
        if self._bytes_per_s:
            due = self._begun + self._read_bytes / self._bytes_per_s
            while (left_s := due - time.monotonic()) > 0:
                time.sleep(min(left_s, _LONGEST_SLEEP_S))


def _copy_file(source: Path, target: Path, pace: _Pace) -> str:
    """Copy one file; returns the hash of what was read, which is that of what was written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_TRIES):
        digest = hashlib.sha256()
        with open(source, "rb") as read, open(target, "wb") as written:
            while block := read.read(_BLOCK_BYTES):
                digest.update(block)
                written.write(block)
                pace.after(len(block))
        if sha256_of_file(target) == digest.hexdigest():
            return digest.hexdigest()
    raise EvaluationError(
        f"{target} does not hold what was written to it, {_TRIES} times: this node's memory or disk "
        "is damaged"
    )
