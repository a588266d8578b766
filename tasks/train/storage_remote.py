"""Checkpoint files behind a URL, through fsspec.

Three layers retry, each what it alone can. botocore repeats an HTTP request that got no good answer
(503, time-out, connection reset), parts of an upload included. This module repeats a read whose body
came short, and fetches in ranges so that little is read twice. The caller repeats a whole upload.
s3fs's own retries are off: multiplied with these, a dead endpoint would take an hour to be noticed.

An upload appears at the place of its file by the last request alone: on S3 by completing the multipart
upload, elsewhere by what fsspec's file system does for `autocommit=False`.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Any, TypeVar, cast

import fsspec
from fsspec.config import conf

from configs.errors import CheckpointError
from tasks.train.patience import STEADY, Patience, retried, within
from tasks.train.storage_base import Storage, checked_name, without_credentials

logger = logging.getLogger(__name__)

PART_BYTES = 32 << 20
"""One part of an upload; S3 takes 10,000, each of 5 MiB or more."""
_BLOCK_BYTES = 8 << 20
_BLOCKS_AHEAD = 4
_ABORT_TIMEOUT_S = 30.0
_S3 = ("s3", "s3a")
_FINAL = (FileNotFoundError, PermissionError, ImportError, ValueError, TypeError, AttributeError)
"""What another try does not cure."""

Result = TypeVar("Result")


class RemoteStorage(Storage):
    """A folder of objects."""

    def __init__(
        self, url: str, patience: Patience = STEADY, *, part_bytes: int = PART_BYTES
    ) -> None:
        self.shown = without_credentials(url).rstrip("/")
        self._patience = patience
        self._part_bytes = part_bytes
        self._is_s3 = url.partition("://")[0] in _S3
        self._fs, self._root = _connect(url, patience)

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        path = self._path(name)
        upload = self._told("written", name, lambda: self._within(lambda: self._open(path)))
        stream = _UploadStream(self, name, upload)
        try:
            yield cast(IO[bytes], stream)
            self._told("written", name, lambda: self._within(lambda: self._finish(path, stream)))
        except BaseException:
            self._give_up(name, upload)
            raise

    def read_bytes(self, name: str) -> bytes:
        path = self._path(name)

        def read() -> bytes:
            return self._range(path, 0, int(self._fs.info(path)["size"]))

        return self._told("read", name, lambda: retried(self._patience, read, _is_final))

    def read_blocks(self, name: str, size_bytes: int) -> Iterator[bytes]:
        path = self._path(name)
        starts = iter(range(0, size_bytes, _BLOCK_BYTES))

        def fetch(start: int) -> bytes:
            end = min(start + _BLOCK_BYTES, size_bytes)
            read = lambda: self._range(path, start, end)  # noqa: E731
            return self._told("read", name, lambda: retried(self._patience, read, _is_final))

        with ThreadPoolExecutor(_BLOCKS_AHEAD, thread_name_prefix="download") as pool:
            ahead: list[Future[bytes]] = []
            try:
                for start in starts:
                    ahead.append(pool.submit(fetch, start))
                    if len(ahead) > _BLOCKS_AHEAD:
                        yield ahead.pop(0).result()
                while ahead:
                    yield ahead.pop(0).result()
            finally:
                for waiting in ahead:
                    waiting.cancel()

    def remove(self, name: str) -> None:
        path = self._path(name)

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(path)

        self._told("removed", name, lambda: retried(self._patience, remove, _is_final))

    def remove_all(self) -> None:
        if "/" not in self._root.strip("/"):
            raise CheckpointError(f"{self.shown} is a whole bucket, of which nothing is removed")

        def remove() -> None:
            self._abort_uploads()
            if paths := self._files():
                self._fs.rm(paths)
            if left := self._files():  # some file systems do not say what they could not remove
                raise OSError(f"{len(left)} files are still there")

        self._told("removed", "", lambda: retried(self._patience, remove, _is_final))

    def names(self) -> list[str]:
        paths = self._told("listed", "", lambda: retried(self._patience, self._files, _is_final))
        names = (path.removeprefix(f"{self._root}/") for path in paths)
        return sorted(name for name in names if "/" not in name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{checked_name(name)}"

    def _files(self) -> list[str]:
        self._fs.invalidate_cache()
        try:
            return list(self._fs.find(self._root))
        except FileNotFoundError:
            return []

    def _range(self, path: str, start: int, end: int) -> bytes:
        """Exactly these bytes: an answer that ends early is an error, whatever its headers say."""
        content: bytes = self._fs.cat_file(path, start=start, end=end) if end > start else b""
        if len(content) != end - start:
            raise OSError(f"{len(content)} bytes came instead of {end - start}")
        return content

    def _open(self, path: str) -> Any:
        return self._fs.open(path, "wb", block_size=self._part_bytes, autocommit=False)

    def _finish(self, path: str, stream: _UploadStream) -> None:
        stream.upload.close()
        stream.upload.commit()
        self._fs.invalidate_cache()
        there = int(self._fs.info(path)["size"])
        if there != stream.tell():
            raise OSError(f"{there} bytes are there after {stream.tell()} were written")

    def _give_up(self, name: str, upload: Any) -> None:
        """Leave nothing of an upload; its own failure is on its way to the caller."""
        try:
            within(_ABORT_TIMEOUT_S, upload.discard)
        except Exception as error:
            logger.warning(
                "%s/%s: the unfinished upload could not be aborted, and stays until the checkpoint is "
                "removed: %s", self.shown, name, _reason(error),
            )  # fmt: skip
        with contextlib.suppress(AttributeError):
            upload.closed = True  # or the garbage collector would upload it once more

    def _abort_uploads(self) -> None:
        """Abort what killed processes have left: it is stored, and paid for, but not listed."""
        if not self._is_s3:
            return
        bucket, _, prefix = self._root.partition("/")
        found = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/")
        for upload in found.get("Uploads", []):
            self._fs.abort_mpu(bucket, upload["Key"], upload["UploadId"])

    def _within(self, work: Callable[[], Result]) -> Result:
        return within(self._patience.call_timeout_s, work)

    def _told(self, deed: str, name: str, work: Callable[[], Result]) -> Result:
        """Do the work; an error becomes one sentence with the file's URL."""
        try:
            return work()
        except CheckpointError:
            raise
        except Exception as error:
            where = f"{self.shown}/{name}" if name else self.shown
            raise CheckpointError(f"{where} could not be {deed}: {_reason(error)}") from error


class _UploadStream(io.RawIOBase):
    """Takes bytes of any amount, passes them on in parts, each within the time limit."""

    def __init__(self, storage: RemoteStorage, name: str, upload: Any) -> None:
        super().__init__()
        self.upload = upload
        self._storage = storage
        self._name = name
        self._size_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size_bytes

    def write(self, data: Any) -> int:
        content, step = memoryview(data).cast("B"), self._storage._part_bytes
        for start in range(0, len(content), step):
            self._write_part(content[start : start + step])
        return len(content)

    def _write_part(self, part: memoryview) -> None:
        storage = self._storage
        write = lambda: self.upload.write(part)  # noqa: E731
        storage._told("written", self._name, lambda: storage._within(write))
        self._size_bytes += len(part)


def _connect(url: str, patience: Patience) -> tuple[Any, str]:
    """The file system and the folder's path in it. No request is made yet."""
    protocol, separator, rest = url.partition("://")
    shown = without_credentials(url)
    if not separator or not rest.strip("/"):
        raise CheckpointError(f"{shown} is no URL of a folder: give one like s3://BUCKET/PREFIX")
    try:
        kind = fsspec.get_filesystem_class(protocol)
    except ValueError as error:
        raise CheckpointError(
            f"{shown} begins with {protocol}://, which fsspec does not know: s3://, gs:// and "
            "file:// are some that it does"
        ) from error
    except ImportError as error:
        package = "overland[s3]" if protocol in _S3 else str(error)
        raise CheckpointError(
            f"{shown} needs a package that is not installed: pip install '{package}'"
        ) from error
    options = {**kind._get_kwargs_from_urls(url), **_limits(protocol, patience)}
    fs = kind(skip_instance_cache=True, use_listings_cache=False, **options)
    if protocol in _S3:
        fs.retries = 1
    return fs, str(kind._strip_protocol(url)).rstrip("/")


def _limits(protocol: str, patience: Patience) -> dict[str, Any]:
    if protocol not in _S3:
        return {}
    limits = {
        "connect_timeout": patience.connect_timeout_s,
        "read_timeout": patience.read_timeout_s,
        "retries": {"total_max_attempts": patience.request_attempts, "mode": "standard"},
    }
    return {"config_kwargs": limits | conf.get(protocol, {}).get("config_kwargs", {})}


def _is_final(error: Exception) -> bool:
    return isinstance(error, _FINAL) or type(error).__name__.endswith("CredentialsError")


def _reason(error: Exception) -> str:
    text = " ".join(without_credentials(str(error)).split()) or type(error).__name__
    if type(error).__name__.endswith("CredentialsError"):
        return f"no credentials ({text}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if isinstance(error, FileNotFoundError):
        return f"no such bucket or file ({text})"
    if isinstance(error, PermissionError):
        return f"access denied ({text})"
    return text
