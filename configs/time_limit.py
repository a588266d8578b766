"""A limit for a call that has none of its own, or only limits for parts of what it does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class GivenUpError(TimeoutError):
    """The time limit is spent; what was called goes on in its thread."""


def within(limit_s: float, work: Callable[[], Result]) -> Result:
    """Run `work` in a thread; GivenUpError when it takes longer, and it is left behind.

    A server that sends a byte now and then, a name that is looked up for ever and storage that hangs
    pass every time-out of a socket.
    """
    results: list[Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, name="limited", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise GivenUpError(f"no end within {limit_s:g} s")
    if failures:
        raise failures[0]
    return results[0]
