"""Waiting in a test, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_LIMIT_S = 240.0


def wait_until(
    condition: Callable[[], object],
    what: str,
    *,
    limit_s: float = WAIT_LIMIT_S,
    pause_s: float = 0.01,
) -> None:
    """Wait until `condition` holds; fail with `what` when it takes too long."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}"
        time.sleep(pause_s)
