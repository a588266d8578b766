"""What a place for checkpoint files can do, whatever kind of place it is.

A file is written whole or it is absent. Every failure is a CheckpointError of one sentence that names
the file's URL without credentials.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from configs.errors import CheckpointError
from configs.files import renamed_when_whole
from configs.records import FileRecord

_DOWNLOAD_ATTEMPTS = 3
"""A file with the wrong content is fetched again this often: the fault may lie on the way."""

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"\?[^\s\"']*=[^\s\"']*")


class Storage(ABC):
    """A folder of checkpoint files. Names are plain file names, without folders."""

    shown: str
    """The folder's URL or path, for messages."""

    @abstractmethod
    def write(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """A binary stream to write the file to; it exists when the block is left without an error."""

    @abstractmethod
    def read_bytes(self, name: str) -> bytes:
        """The whole content of a small file."""

    @abstractmethod
    def read_blocks(self, name: str, size_bytes: int) -> Iterator[bytes]:
        """The first `size_bytes` of a file, in order, in blocks of a size that memory has room for."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""

    @abstractmethod
    def remove_all(self) -> None:
        """Remove all files, unfinished ones too, and the folder."""

    def download(self, name: str, to: Path, expected: FileRecord) -> None:
        """Copy a file to `to`, which afterwards has the expected size and SHA-256, or is not there."""
        for attempt in range(1, _DOWNLOAD_ATTEMPTS + 1):
            try:
                with renamed_when_whole(to) as file:
                    self._copy(name, file, expected)
                return
            except _CorruptError as error:
                if attempt == _DOWNLOAD_ATTEMPTS:
                    raise CheckpointError(f"{self.shown}/{name} is corrupt: {error}") from None
            except OSError as error:  # on this side; the storage's own errors are CheckpointErrors
                raise CheckpointError(
                    f"{self.shown}/{name} could not be copied to {to}: {error}"
                ) from error

    def _copy(self, name: str, file: IO[bytes], expected: FileRecord) -> None:
        """Copy the content, if it is what was expected."""
        digest, size_bytes = hashlib.sha256(), 0
        for block in self.read_blocks(name, expected.size_bytes):
            digest.update(block)
            size_bytes += len(block)
            file.write(block)
        if size_bytes != expected.size_bytes:
            raise _CorruptError(f"it has {size_bytes} bytes instead of {expected.size_bytes}")
        if digest.hexdigest() != expected.sha256:
            raise _CorruptError("its SHA-256 is not the recorded one")


class _CorruptError(Exception):
    """A file has not the content that was recorded; the text says how."""


def checked_name(name: str) -> str:
    """The name, if it is a plain file name: others could lead out of the folder."""
    if not name or name in (".", "..") or any(c in name for c in "/\\\0"):
        raise CheckpointError(f"{name!r} is no name of a checkpoint's file")
    return name


def without_credentials(text: str) -> str:
    """A URL, or a text with URLs in it, without user names, passwords and signed queries."""
    return _QUERY.sub("", _CREDENTIALS.sub("", text))
