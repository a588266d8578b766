"""Where a checkpoint's files are kept: a local folder, or any URL that fsspec knows.

    storage = open_storage(marker.storage, checkpoint.path)
    with storage.write("__0_0.distcp") as file:
        file.write(...)
    storage.download("__0_0.distcp", to, marker.files["__0_0.distcp"])

A local folder needs no fsspec. Of the others, S3 has limits and retries of its own
(:mod:`tasks.train.storage_remote`); its endpoint and credentials are those of the environment, like
AWS_ENDPOINT_URL and AWS_PROFILE, or of fsspec's config files.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from configs.errors import CheckpointError, ConfigError
from configs.files import renamed_when_whole, sync_directory
from configs.rundir import RunDir, step_folder_name
from configs.schema import RunConfig
from configs.time_limit import within
from tasks.train.patience import PROBE, STEADY, Patience
from tasks.train.storage_base import Storage, checked_name, without_credentials

_BLOCK_BYTES = 4 << 20
_LOCAL = "file://"
PROBE_LIMIT_S = 20.0


def open_storage(url: str | None, folder: Path, patience: Patience = STEADY) -> Storage:
    """The storage at `url`; `folder` itself when that is None. Nothing is connected to yet."""
    if url is None:
        return LocalStorage(folder)
    if url.startswith(_LOCAL):
        return LocalStorage(Path(url.removeprefix(_LOCAL)))
    # Only now: a run that keeps its checkpoints in its own directory does not wait for fsspec.
    from tasks.train.storage_remote import RemoteStorage

    return RemoteStorage(url, patience)


def checkpoint_url(base: str, run_name: str, step: int, attempt: int) -> str:
    """URL of one checkpoint's folder.

    It holds the attempt: a step that is saved again never meets what an earlier save, or the removal
    of one, has left at the same place.
    """
    return f"{base.rstrip('/')}/{run_name}/{step_folder_name(step)}-{attempt:03d}"


def require_storage(config: RunConfig) -> None:
    """ConfigError when checkpoints cannot be kept where the config says, before hours of work.

    Once training has begun, a storage that is down for a while is the attempt's to deal with.
    """
    if not RunDir(config.resolved_run_dir()).attempts():
        check_access(config.checkpoint.storage)


def check_access(url: str | None) -> None:
    """Write, read back and remove a small file; ConfigError says what is wrong with `url`.

    Takes some 20 s at most, also when nobody answers.
    """
    if url is None:
        return
    shown, name = without_credentials(url), f"overland-probe-{uuid.uuid4().hex}"
    try:
        within(PROBE_LIMIT_S, lambda: _probe(url, name))
    except CheckpointError as error:
        told = str(error).replace(f"/{name}", "")  # it means nothing to a person
        raise ConfigError(f"checkpoint.storage: {told}") from error
    except TimeoutError as error:
        raise ConfigError(
            f"checkpoint.storage: {shown} did not answer within {PROBE_LIMIT_S:.0f} s: check the "
            "endpoint and the network"
        ) from error


def _probe(url: str, name: str) -> None:
    storage, content = open_storage(url, Path(), PROBE), b"written to see whether it can be"
    with storage.write(name) as file:
        file.write(content)
    found = storage.read_bytes(name)
    storage.remove(name)
    if found != content:
        raise CheckpointError(f"{storage.shown} gave back something else than was written")


class LocalStorage(Storage):
    """A folder of this machine, or of a file system that all nodes share."""

    def __init__(self, folder: Path) -> None:
        self.shown = str(folder)
        self._folder = folder

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        path = self._folder / checked_name(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with renamed_when_whole(path) as file:
                yield file
        except OSError as error:
            raise CheckpointError(f"{path} could not be written: {error}") from error

    def read_bytes(self, name: str) -> bytes:
        path = self._folder / checked_name(name)
        try:
            return path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path} could not be read: {error}") from error

    def read_blocks(self, name: str, size_bytes: int) -> Iterator[bytes]:
        path = self._folder / checked_name(name)
        try:
            with open(path, "rb") as file:
                while size_bytes > 0 and (block := file.read(min(size_bytes, _BLOCK_BYTES))):
                    size_bytes -= len(block)
                    yield block
        except OSError as error:
            raise CheckpointError(f"{path} could not be read: {error}") from error

    def remove(self, name: str) -> None:
        path = self._folder / checked_name(name)
        try:
            path.unlink(missing_ok=True)
            if self._folder.is_dir():
                sync_directory(self._folder)
        except OSError as error:
            raise CheckpointError(f"{path} could not be removed: {error}") from error

    def remove_all(self) -> None:
        try:
            shutil.rmtree(self._folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointError(f"{self._folder} could not be removed: {error}") from error
        sync_directory(self._folder.parent)
