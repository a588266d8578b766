"""Posts a JSON message to a webhook. Its URL is a secret: nothing that is raised or logged holds it.

What fails is told in words and raises nothing: an alert that does not arrive ends no run. The whole
request has one time limit, also against a server that sends a byte now and then, so it is made in a
thread that is given up when the time is over.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Any

import httpx

SENT = "sent"
_PAUSE_S = 1.0


def post(url: str, message: dict[str, Any], *, timeout_s: float, tries: int = 1) -> str:
    """Returns SENT, or why the message has not arrived: of the last try."""
    said = ""
    for number in range(tries):
        if number:
            time.sleep(_PAUSE_S)
        said = _within(url, message, timeout_s)
        if said == SENT or said.startswith("refused"):
            break  # to ask the same again would bring the same answer
    return said


def _within(url: str, message: dict[str, Any], timeout_s: float) -> str:
    answer: queue.SimpleQueue[str] = queue.SimpleQueue()
    thread = threading.Thread(
        target=lambda: answer.put(_post(url, message, timeout_s)), name="webhook", daemon=True
    )
    thread.start()
    try:
        return answer.get(timeout=timeout_s)
    except queue.Empty:
        return f"no answer within {timeout_s:g} s"


def _post(url: str, message: dict[str, Any], timeout_s: float) -> str:
    hide = _OfThisThread()
    logger = logging.getLogger("httpx")  # it logs each request with its URL
    logger.addFilter(hide)
    try:
        with (
            httpx.Client(timeout=timeout_s, follow_redirects=False) as client,
            client.stream("POST", url, json=message) as response,  # the body is not read
        ):
            return _what_it_means(response.status_code)
    except httpx.TimeoutException:
        return f"no answer within {timeout_s:g} s"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return f"not reachable ({type(error).__name__})"  # its text may hold the URL
    finally:
        logger.removeFilter(hide)


def _what_it_means(status: int) -> str:
    if 200 <= status < 300:
        return SENT
    transient = status >= 500 or status in (408, 429)
    return f"{'failed' if transient else 'refused'} with HTTP status {status}"


class _OfThisThread(logging.Filter):
    """Drops what the thread that made it logs."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread
