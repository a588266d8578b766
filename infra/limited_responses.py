"""Keeps a server's answer to a size, whatever it sends: a hook for the HTTP client."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2

from configs.errors import LanguageModelError

_MAX_RESPONSE_BYTES = 1 << 20


def limit_size(response: httpx2.Response) -> None:
    """Refuse more than a mebibyte, and what is packed: a small body may unpack to a large one."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise LanguageModelError(f"the server answers in {encoding}, which was not asked for")
    if isinstance(response.stream, httpx2.SyncByteStream):
        response.stream = _LimitedStream(response.stream)


class _LimitedStream(httpx2.SyncByteStream):
    """A response's bytes, up to a limit."""

    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        size_bytes = 0
        for piece in self._stream:
            size_bytes += len(piece)
            if size_bytes > _MAX_RESPONSE_BYTES:
                raise LanguageModelError(f"the answer is larger than {_MAX_RESPONSE_BYTES} bytes")
            yield piece

    def close(self) -> None:
        self._stream.close()
