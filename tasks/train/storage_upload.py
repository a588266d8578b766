"""How a file is put behind a URL whole or not at all, on the kinds of file systems that fsspec knows."""

from __future__ import annotations

import contextlib
import io
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from configs.checkpoint_checks import S3
from configs.time_limit import within
from tasks.train.patience import Patience, retried

_OBJECT_STORES = ("gs", "gcs", "az", "abfs", "abfss", "oss")
_PARTS_AT_ONCE = 3
_ABORT_TIMEOUT_S = 30.0
_MULTIPART = "multipart_upload"


def begin_upload(fs: Any, protocol: str, path: str, part_bytes: int, patience: Patience) -> Upload:
    """Begin a file at `path` of a file system."""
    if protocol in S3:
        return S3Upload(fs, path, part_bytes, patience)
    if protocol in _OBJECT_STORES:
        return ObjectUpload(fs, path, part_bytes, patience)
    return RenamedUpload(fs, path, patience)


class Upload(ABC):
    """A file that is being written, and not there before `commit`."""

    @abstractmethod
    def write(self, data: memoryview) -> None: ...

    @abstractmethod
    def commit(self) -> None:
        """The file is there, with all that was written."""

    @abstractmethod
    def discard(self) -> None:
        """Nothing of it is left."""


class S3Upload(Upload):
    """A multipart upload whose parts are on their way while the next one is filled.

    s3fs's own files send one part at a time, and wait for ever for a server that stops reading.
    """

    def __init__(self, fs: Any, path: str, part_bytes: int, patience: Patience) -> None:
        bucket, key, _ = fs.split_path(path)
        self._fs, self._path, self._patience = fs, path, patience
        self._target = {"Bucket": bucket, "Key": key}
        self._part_bytes = part_bytes
        self._buffer = bytearray()
        self._upload: dict[str, Any] = {}
        self._parts: list[Future[dict[str, Any]]] = []
        self._pool = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="upload")

    def write(self, data: memoryview) -> None:
        self._buffer += data
        if len(self._buffer) >= self._part_bytes:
            self._send_part()

    def commit(self) -> None:
        if not self._upload:
            self._call("put_object", Body=bytes(self._buffer), **self._target)
        else:
            if self._buffer:
                self._send_part()
            parts = [part.result() for part in self._parts]
            # A completion whose answer was lost is told, at the next try, that there is no such
            # upload. Whether the file is there, its size tells.
            with contextlib.suppress(FileNotFoundError):
                self._call(f"complete_{_MULTIPART}", MultipartUpload={"Parts": parts})
            self._upload = {}
        self._pool.shutdown()

    def discard(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._buffer.clear()
        if self._upload:
            wait(self._parts, timeout=_ABORT_TIMEOUT_S)  # a part that comes later would stay
            within(_ABORT_TIMEOUT_S, self._abort)

    def _abort(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._call(f"abort_{_MULTIPART}")

    def _send_part(self) -> None:
        if not self._upload:
            self._begin()
        content, number = bytes(self._buffer), len(self._parts) + 1
        self._buffer.clear()
        if len(self._parts) >= _PARTS_AT_ONCE:
            self._parts[-_PARTS_AT_ONCE].result()  # or memory would fill with waiting parts
        self._parts.append(self._pool.submit(self._upload_part, number, content))

    def _begin(self) -> None:
        # What is there must not be taken for this upload's, in case its completion is not answered.
        self._call("delete_object", **self._target)
        answer = self._call(f"create_{_MULTIPART}", **self._target)
        self._upload = {**self._target, "UploadId": answer["UploadId"]}

    def _upload_part(self, number: int, content: bytes) -> dict[str, Any]:
        answer = self._call("upload_part", PartNumber=number, Body=content)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    def _call(self, method: str, **arguments: Any) -> Any:
        arguments = {**self._upload, **arguments}
        limit_s = self._patience.request_timeout_s
        call = lambda: self._fs.call_s3(method, timeout=limit_s, **arguments)  # noqa: E731
        return retried(self._patience, call)


class ObjectUpload(Upload):
    """An object of another store, which appears by the last request alone."""

    def __init__(self, fs: Any, path: str, part_bytes: int, patience: Patience) -> None:
        self._limit_s = patience.call_timeout_s
        begin = lambda: fs.open(path, "wb", block_size=part_bytes, autocommit=False)  # noqa: E731
        self._file = within(self._limit_s, begin)

    def write(self, data: memoryview) -> None:
        within(self._limit_s, lambda: self._file.write(data))

    def commit(self) -> None:
        within(self._limit_s, self._file.close)
        within(self._limit_s, self._file.commit)

    def discard(self) -> None:
        try:
            within(_ABORT_TIMEOUT_S, self._file.discard)
        finally:
            self._file.closed = True  # or the garbage collector would upload it after all


class RenamedUpload(Upload):
    """A file system with folders and renames: written under another name beside."""

    def __init__(self, fs: Any, path: str, patience: Patience) -> None:
        folder, _, name = path.rpartition("/")
        self._fs, self._path, self._limit_s = fs, path, patience.call_timeout_s
        self._temporary = f"{folder}/.{name}.{uuid.uuid4().hex[:8]}.tmp"

        def begin() -> Any:
            fs.makedirs(folder, exist_ok=True)
            return fs.open(self._temporary, "wb")

        self._file = within(self._limit_s, begin)

    def write(self, data: memoryview) -> None:
        within(self._limit_s, lambda: self._file.write(data))

    def commit(self) -> None:
        within(self._limit_s, self._file.close)
        within(self._limit_s, lambda: self._fs.mv(self._temporary, self._path))

    def discard(self) -> None:
        def remove() -> None:
            self._file.close()
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._temporary)

        within(_ABORT_TIMEOUT_S, remove)


class UploadStream(io.RawIOBase):
    """Takes bytes of any amount and passes them on in pieces; `guard` names the file in errors."""

    def __init__(
        self, upload: Upload, piece_bytes: int, guard: Callable[[Callable[[], None]], None]
    ) -> None:
        super().__init__()
        self._upload = upload
        self._piece_bytes = piece_bytes
        self._guard = guard
        self._size_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size_bytes

    def write(self, data: Any) -> int:
        content = memoryview(data).cast("B")
        for start in range(0, len(content), self._piece_bytes):
            piece = content[start : start + self._piece_bytes]
            self._guard(lambda piece=piece: self._upload.write(piece))  # type: ignore[misc]
            self._size_bytes += len(piece)
        return len(content)
