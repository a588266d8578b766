"""Servers that a command starts beside itself: wait until one answers, and end it."""

from __future__ import annotations

import subprocess
import time

import httpx

_POLL_INTERVAL_S = 0.1
_ANSWER_LIMIT_S = 5.0
_STOP_LIMIT_S = 10.0


def wait_until_up(server: subprocess.Popen[bytes], health_url: str, limit_s: float) -> bool:
    """Whether the server answers before `limit_s` is over; at once False when it has died."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(health_url, timeout=_ANSWER_LIMIT_S).is_success:
                return True
        except httpx.TransportError:
            pass  # Not listening yet.
        time.sleep(_POLL_INTERVAL_S)
    return False


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server: SIGTERM, and SIGKILL when it does not follow."""
    server.terminate()
    try:
        server.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
