"""Folders and storage: what a run relies on when it writes, and how much room there is."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import uuid
from pathlib import Path

import psutil

from configs.files import append_json_line, read_json_lines, resolved, write_text
from configs.memory import GIB
from infra.doctor.findings import Finding, failed, ok, warning

PREFIX = ".overland-doctor-"
_LITTLE_ROOM_BYTES = GIB
_CHECKPOINTS_WANTED = 3
"""One committed, one being written, and one spare."""
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "az"}
_FORGOTTEN_AT_REBOOT = {"tmpfs", "ramfs", "overlay"}


def existing_parent(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    folder = resolved(folder)
    while not folder.exists():
        folder = folder.parent
    return folder


def check_folder(_: threading.Event, folder: Path) -> Finding:
    """Whether files there behave as the run directory needs it."""
    subject = "run folder"
    place = existing_parent(folder)
    if not place.is_dir():
        return failed(subject, f"{place} is not a folder: choose another run_dir")
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place) as name:
            wrong = _try_files(Path(name))
    except OSError as error:
        return failed(
            subject,
            f"{place} cannot be written ({error.strerror or error}): choose another run_dir",
        )
    if wrong:
        return failed(subject, f"{place}: {wrong}")
    kind = file_system(place)
    said = f"{place}: atomic rename, fsync, append and locks work" + (f" ({kind})" if kind else "")
    if kind in _FORGOTTEN_AT_REBOOT:
        return warning(subject, f"{said}, but what is on {kind} is gone when the machine restarts")
    return ok(subject, said)


def _try_files(folder: Path) -> str | None:
    """What does not work; OSError where the storage itself says so."""
    path = folder / "file"
    write_text(path, "old")
    with open(path) as reader:
        write_text(path, "new")
        if reader.read() != "old" or path.read_text() != "new":
            return "a rename over a file changes what its readers see: use another file system"
    for number in (1, 2):
        append_json_line(folder / "lines", {"number": number})
    if [value["number"] for value, _ in read_json_lines(folder / "lines")] != [1, 2]:
        return "lines that were appended are not read back: use another file system"
    return _try_lock(folder / "lock")


def _try_lock(path: Path) -> str | None:
    without = (
        "two flows could work on one run: mount it with locks (Lustre: -o flock; NFS: version 4)"
    )
    first = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    second = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return f"a lock can be had twice, so {without}"
    except OSError as error:
        return f"it has no locks ({error.strerror}), so {without}"
    finally:
        os.close(second)
        os.close(first)


def file_system(folder: Path) -> str:
    """Its kind, like nfs4 or ext4; empty when the system does not say."""
    mounts = {Path(p.mountpoint): p.fstype for p in psutil.disk_partitions(all=True)}
    for place in (folder, *folder.parents):
        if place in mounts:
            return mounts[place]
    return ""


def check_room(_: threading.Event, folder: Path, checkpoint_bytes: int | None) -> Finding:
    """Room on the disk; `checkpoint_bytes`: of one checkpoint, where they are kept there."""
    place = existing_parent(folder)
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        return failed("disk room", f"{place} cannot be asked ({error.strerror})")
    return judge_room(place, free, checkpoint_bytes)


def judge_room(place: Path, free: int, checkpoint_bytes: int | None) -> Finding:
    room = f"{free / GIB:,.1f} GiB free in {place}"
    if checkpoint_bytes is not None:
        size = f"a checkpoint of this run takes {checkpoint_bytes / GIB:,.2g} GiB"
        if free < checkpoint_bytes:
            return failed("disk room", f"{room}, but {size}: make room, or choose another run_dir")
        if free < _CHECKPOINTS_WANTED * checkpoint_bytes:
            return warning(
                "disk room", f"{room}, but {size}: make room, or set checkpoint.keep_last"
            )
        room += f"; {size}"
    if free < _LITTLE_ROOM_BYTES:
        return failed("disk room", f"{room}: make room, or choose another run_dir")
    return ok("disk room", room)


def check_checkpoint_storage(_: threading.Event, url: str) -> Finding:
    """Write, read and remove a small object."""
    subject = "checkpoint storage"
    import fsspec

    name = f"{url.rstrip('/')}/{PREFIX}{uuid.uuid4().hex[:8]}"
    try:
        storage, path = fsspec.core.url_to_fs(name, skip_instance_cache=True)
        made = []
        # In an object store a folder need not be made, and the outermost would be a bucket.
        if url.partition("://")[0] not in _OBJECT_STORES:
            made = [folder for folder in _parents(path) if not storage.exists(folder)]
            storage.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            storage.pipe_file(path, b"overland")
            try:
                back = storage.cat_file(path)
            finally:
                storage.rm_file(path)
        finally:
            for folder in made:
                storage.rmdir(folder)
    except ImportError as error:
        return failed(subject, f"{url}: {error}: pip install 'overland[s3]' for s3://")
    except Exception as error:  # each storage raises its own
        words = " ".join(str(error).split())[:300] or type(error).__name__
        return failed(
            subject,
            f"{url} cannot be written ({words}): check the address, and the credentials in the "
            "environment (AWS_ACCESS_KEY_ID, AWS_PROFILE, ...)",
        )
    if back != b"overland":
        return failed(subject, f"{url} gives back other bytes than it was given: do not use it")
    return ok(subject, f"{url} can be written, read and cleared")


def _parents(path: str) -> list[str]:
    """The folders above it, innermost first."""
    found = []
    while "/" in (path := path.rpartition("/")[0]) and path.strip("/"):
        found.append(path)
    return found
