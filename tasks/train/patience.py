"""How long, and how often, something outside this process is asked before it counts as failed."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from configs.time_limit import GivenUpError, within

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Patience:
    """Limits of one storage."""

    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    """No byte of an answer for this long."""
    request_attempts: int = 5
    """Tries of one HTTP request, with back-off."""
    request_timeout_s: float = 120.0
    """All of these together; also for the time in which the other side takes nothing more."""
    attempts: int = 3
    """Tries of one operation, each of which may fail after its request was answered."""
    backoff_s: float = 0.5
    """Wait before the second try; doubles with each further one."""
    call_timeout_s: float = 300.0
    """The whole of one operation's try; then it is given up for good."""


STEADY = Patience()
PROBE = Patience(
    connect_timeout_s=3.0, read_timeout_s=4.0, request_attempts=2, request_timeout_s=9.0,
    attempts=1, call_timeout_s=10.0,
)  # fmt: skip
"""Of the check before training: a person waits."""

BRIEF = Patience(
    connect_timeout_s=5.0, read_timeout_s=20.0, request_attempts=3, attempts=1, call_timeout_s=60.0
)
"""Of what holds up the next save, and can be done after it as well."""


_FINAL = (FileNotFoundError, PermissionError, ImportError, ValueError, TypeError, AttributeError)


def is_final(error: Exception) -> bool:
    """Whether another try would not cure it: there is no such thing, or no right to it, or a mistake."""
    return isinstance(error, _FINAL) or is_about_credentials(error)


def is_about_credentials(error: Exception) -> bool:
    """Whether none were found, or only a part; botocore need not be there to know its errors."""
    return type(error).__name__.endswith("CredentialsError")


def retried(patience: Patience, work: Callable[[], Result]) -> Result:
    """Run `work`, which can be repeated, until it succeeds, fails for good, or the tries are spent."""
    for attempt in range(1, patience.attempts + 1):
        try:
            return within(patience.call_timeout_s, work)
        except Exception as error:
            if attempt == patience.attempts or isinstance(error, GivenUpError) or is_final(error):
                raise
            wait_s = patience.backoff_s * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)  # noqa: S311
            logger.info("try %d failed, again in %.1f s: %s", attempt, wait_s, error)
            time.sleep(wait_s)
    raise AssertionError("a Patience has at least one attempt")
