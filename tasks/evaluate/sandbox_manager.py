"""`multiprocessing.Manager` without sockets, as far as metrics that run code need it.

Hugging Face's `code_eval` has each program append its result to such a manager's list. The real one is a
server on a Unix socket, which the sandbox refuses.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

_MAX_CHARACTERS = 4096


class Manager:
    """Stands for what `multiprocessing.Manager()` returns."""

    def list(self) -> SharedList:
        """A list for this process and those it forks."""
        return SharedList()


class SharedList:
    """A list of texts: forked processes append, the one that made it reads."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._rest = b""
        self._items: list[str] = []

    def append(self, item: str) -> None:
        os.write(self._write, json.dumps(item[:_MAX_CHARACTERS]).encode() + b"\n")

    def __len__(self) -> int:
        with suppress(BlockingIOError):
            self._rest += os.read(self._read, 1 << 16)
        *lines, self._rest = self._rest.split(b"\n")
        self._items += [str(json.loads(line)) for line in lines]
        return len(self._items)

    def __getitem__(self, index: int) -> str:
        len(self)
        return self._items[index]
