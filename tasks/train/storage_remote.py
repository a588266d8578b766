"""Checkpoint files behind a URL, through fsspec.

Two layers retry, each what it alone can. botocore repeats an HTTP request that got no good answer (503,
time-out, connection reset). This module repeats what was answered and came short, in ranges so that
little is read twice, and parts of an upload that the other side stopped reading. s3fs's own retries
are off: multiplied with these, a dead endpoint would take an hour to be noticed.

An upload appears at the place of its file by the last request alone: on S3 by completing the multipart
upload (:mod:`tasks.train.storage_upload`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Any, TypeVar, cast

import fsspec
from fsspec.config import conf

from configs.checkpoint_checks import S3
from configs.errors import CheckpointError
from tasks.train.patience import STEADY, Patience, is_about_credentials, retried
from tasks.train.storage_base import Storage, checked_name, without_credentials
from tasks.train.storage_upload import Upload, UploadStream, begin_upload

logger = logging.getLogger(__name__)

PART_BYTES = 32 << 20
"""One part of an upload; S3 takes 10,000, each of 5 MiB or more."""
_BLOCK_BYTES = 8 << 20
_BLOCKS_AHEAD = 4
Result = TypeVar("Result")


class RemoteStorage(Storage):
    """A folder of objects."""

    def __init__(
        self, url: str, patience: Patience = STEADY, *, part_bytes: int = PART_BYTES
    ) -> None:
        self.shown = without_credentials(url).rstrip("/")
        self._patience = patience
        self._part_bytes = part_bytes
        self._protocol = url.partition("://")[0]
        self._fs, self._root = _connect(url, patience)

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        path = self._path(name)

        def told(work: Callable[[], Result]) -> Result:
            return self._told("written", name, work)

        arguments = (self._fs, self._protocol, path, self._part_bytes, self._patience)
        upload = told(lambda: begin_upload(*arguments))
        stream = UploadStream(upload, self._part_bytes, told)
        try:
            yield cast(IO[bytes], stream)
            told(upload.commit)
            told(lambda: self._require_size(path, stream.tell()))
        except BaseException:
            self._give_up(name, upload)
            raise

    def read_bytes(self, name: str) -> bytes:
        path = self._path(name)

        def read() -> bytes:
            return self._range(path, 0, int(self._fs.info(path)["size"]))

        return self._told("read", name, lambda: retried(self._patience, read))

    def read_blocks(self, name: str, size_bytes: int) -> Iterator[bytes]:
        path = self._path(name)
        starts = iter(range(0, size_bytes, _BLOCK_BYTES))

        def fetch(start: int) -> bytes:
            end = min(start + _BLOCK_BYTES, size_bytes)
            read = lambda: self._range(path, start, end)  # noqa: E731
            return self._told("read", name, lambda: retried(self._patience, read))

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

        self._told("removed", name, lambda: retried(self._patience, remove))

    def remove_all(self) -> None:
        if "/" not in self._root.strip("/"):
            raise CheckpointError(f"{self.shown} is a whole bucket, of which nothing is removed")

        def remove() -> None:
            self._abort_uploads()
            if paths := self._files():
                self._fs.rm(paths)
            if left := self._files():  # some file systems do not say what they could not remove
                raise OSError(f"{len(left)} files are still there")

        self._told("removed", "", lambda: retried(self._patience, remove))

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

    def _require_size(self, path: str, size_bytes: int) -> None:
        self._fs.invalidate_cache()
        there = retried(self._patience, lambda: int(self._fs.info(path)["size"]))
        if there != size_bytes:
            raise OSError(f"{there} bytes are there after {size_bytes} were written")

    def _give_up(self, name: str, upload: Upload) -> None:
        """Leave nothing of an upload; its own failure is on its way to the caller."""
        try:
            upload.discard()
        except Exception as error:
            logger.warning(
                "%s/%s: the unfinished upload could not be aborted, and stays until the checkpoint is "
                "removed: %s", self.shown, name, _reason(error),
            )  # fmt: skip

    def _abort_uploads(self) -> None:
        """Abort what killed processes have left: it is stored, and paid for, but not listed."""
        if self._protocol not in S3:
            return
        bucket, _, prefix = self._root.partition("/")
        found = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/")
        for upload in found.get("Uploads", []):
            self._fs.abort_mpu(bucket, upload["Key"], upload["UploadId"])

    def _told(self, deed: str, name: str, work: Callable[[], Result]) -> Result:
        """Do the work; an error becomes one sentence with the file's URL."""
        try:
            return work()
        except CheckpointError:
            raise
        except Exception as error:
            where = f"{self.shown}/{name}" if name else self.shown
            raise CheckpointError(f"{where} could not be {deed}: {_reason(error)}") from error


def _connect(url: str, patience: Patience) -> tuple[Any, str]:
    """The file system and the folder's path in it. No request is made yet."""
    protocol, separator, rest = url.partition("://")
    shown = without_credentials(url)
    if protocol in S3 and shown != url:
        raise CheckpointError(
            f"{shown} was given with credentials or parameters: leave them out, and set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
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
        package = "overland[s3]" if protocol in S3 else str(error)
        raise CheckpointError(
            f"{shown} needs a package that is not installed: pip install '{package}'"
        ) from error
    options = {**kind._get_kwargs_from_urls(url), **_limits(protocol, patience)}
    fs = kind(skip_instance_cache=True, use_listings_cache=False, **options)
    if protocol in S3:
        fs.retries = 1
    return fs, str(kind._strip_protocol(url)).rstrip("/")


def _limits(protocol: str, patience: Patience) -> dict[str, Any]:
    if protocol not in S3:
        return {}
    limits = {
        "connect_timeout": patience.connect_timeout_s,
        "read_timeout": patience.read_timeout_s,
        "retries": {"total_max_attempts": patience.request_attempts, "mode": "standard"},
    }
    return {"config_kwargs": limits | conf.get(protocol, {}).get("config_kwargs", {})}


def _reason(error: Exception) -> str:
    text = " ".join(without_credentials(str(error)).split()) or type(error).__name__
    if is_about_credentials(error):
        return f"no credentials ({text}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if isinstance(error, TimeoutError):
        return f"no answer in time ({text})"
    if isinstance(error, FileNotFoundError):
        return f"no such bucket or file ({text})"
    if isinstance(error, PermissionError):
        return f"access denied ({text})"
    return text
