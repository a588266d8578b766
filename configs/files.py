"""Durable, readable files: whole or absent, never half-written.

A file is written under a temporary name in the same folder, synced, and renamed. An event file
(JSON lines) is only ever appended to, one line a write; a reader ignores a last line without newline.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import io
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from configs.errors import ConfigError
from configs.full_disk import with_path

_HASH_BLOCK_BYTES = 1 << 20


def resolved(path: Path) -> Path:
    """The absolute path, with ~ read as a shell does. ConfigError when there is no such user."""
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:
        name = path.parts[0].removeprefix("~")
        raise ConfigError(f"{path}: there is no user {name}: write the whole path") from error


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` durably: a reader sees the old content or the new, at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode()
    try:
        with renamed_when_whole(path) as file:
            file.write(content)
    except OSError as error:
        if (told := with_path(error, path, len(content))) is not None:
            raise told from error
        raise


@contextmanager
def renamed_when_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file beside `path`, synced and renamed to it at the end of the block; removed on an error."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, durably."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync_directory(path: Path) -> None:
    """Make renames and new names in the folder `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of `path` durable, whoever wrote it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of_file(path: Path) -> str:
    """Hex SHA-256 of the file's bytes, read in blocks."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def remembered_sha256(path: Path) -> str:
    """The file's SHA-256, computed once for each time that it was written."""
    status = path.stat()
    return _sha256_as_of(path, status.st_size, status.st_mtime_ns, status.st_ino)


@functools.lru_cache(maxsize=4096)
def _sha256_as_of(path: Path, *_version: int) -> str:
    return sha256_of_file(path)


def sha256_of_json(value: Any) -> str:
    """Hex SHA-256 of a JSON-ready value; the order of keys does not matter."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def append_json_line(path: Path, value: Any) -> None:
    """Append one JSON line with a single write, so that concurrent readers never see half of it.

    Raises OSError when it cannot be written in full. What a full disk (or a crash) has left of a
    line is ended before the next one begins, which so costs no other line.
    """
    line = json.dumps(value, ensure_ascii=False).encode() + b"\n"
    with open(path, "a+b", buffering=0) as file:
        if _ends_within_a_line(file):
            line = b"\n" + line
        while line:  # a second time only to learn why the first write took a part of it
            line = line[file.write(line) :]


def _ends_within_a_line(file: io.FileIO) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def read_json_lines(path: Path, offset_bytes: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield (value, offset after it) for each whole line from `offset_bytes` on.

    A missing file yields nothing. A last line without newline is still being written and is left
    for the next read. A whole line that is not a JSON object (torn by a crash) is skipped.
    """
    if not path.exists():
        return
    with open(path, "rb") as file:
        file.seek(offset_bytes)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset_bytes += len(line)
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value, offset_bytes


@contextmanager
def file_lock(path: Path, *, blocking: bool = True, shared: bool = False) -> Iterator[bool]:
    """Hold an exclusive or `shared` lock on `path` (created when absent); yields whether it was got.

    The kernel frees the lock when its holder dies, so a stale lock cannot exist.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(descriptor, kind | (0 if blocking else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock on `path` now. Needs to read the file only, and creates nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
