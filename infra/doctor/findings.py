"""What a check says, and how checks are run: side by side, none longer than its limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum

_POLL_S = 0.05
_CLEAN_UP_S = 15.0
"""A check that is told to stop may take this long to tidy up."""


class Status(StrEnum):
    """OK and WARNING let a site pass; SKIPPED says why nothing can be said."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, and a sentence; where something is wrong, it says what to do."""

    subject: str
    status: Status
    sentence: str


def ok(subject: str, sentence: str) -> Finding:
    return Finding(subject, Status.OK, sentence)


def warning(subject: str, sentence: str) -> Finding:
    return Finding(subject, Status.WARNING, sentence)


def failed(subject: str, sentence: str) -> Finding:
    return Finding(subject, Status.FAILED, sentence)


def skipped(subject: str, sentence: str) -> Finding:
    return Finding(subject, Status.SKIPPED, sentence)


Look = Callable[[threading.Event], Finding | Sequence[Finding]]
"""Is given an event that is set when it should stop and tidy up."""


@dataclass(frozen=True)
class Check:
    """One look at one thing; it may say several things about it."""

    group: str
    subject: str
    look: Look
    limit_s: float = 20.0


@dataclass
class _Running:
    check: Check
    began: float
    stop: threading.Event = field(default_factory=threading.Event)
    result: Future[tuple[Finding, ...]] = field(default_factory=Future)
    thread: threading.Thread | None = None


def examine(
    checks: Iterable[Check], waits_for: Callable[[Check], None] = lambda _: None
) -> Iterator[tuple[Check, tuple[Finding, ...]]]:
    """Make all checks at the same time; the findings in the checks' order, as they come.

    `waits_for` is told of each check before its end is waited for.
    When the caller goes away, those that still look are told to stop, and are given time to tidy up.
    """
    running = [_start(check) for check in checks]
    try:
        for one in running:
            waits_for(one.check)
            yield one.check, _findings_of(one)
    finally:
        for one in running:
            one.stop.set()
        deadline = time.monotonic() + _CLEAN_UP_S
        for one in running:
            if one.thread is not None and not one.result.done():
                one.thread.join(max(0.0, deadline - time.monotonic()))


def _start(check: Check) -> _Running:
    one = _Running(check, time.monotonic())
    one.thread = threading.Thread(target=_run, args=(one,), name=check.subject, daemon=True)
    one.thread.start()
    return one


def _run(one: _Running) -> None:
    try:
        found = one.check.look(one.stop)
    except (
        Exception
    ) as error:  # a check that breaks is a finding too, and no reason to end the others
        words = " ".join(str(error).split()) or type(error).__name__
        found = failed(
            one.check.subject, f"the check itself broke: {type(error).__name__}: {words}"
        )
    one.result.set_result((found,) if isinstance(found, Finding) else tuple(found))


def _findings_of(one: _Running) -> tuple[Finding, ...]:
    deadline = one.began + one.check.limit_s
    while not one.result.done():
        if time.monotonic() >= deadline:
            return (
                failed(
                    one.check.subject,
                    f"no end within {one.check.limit_s:g} s: what it looks at hangs",
                ),
            )
        time.sleep(_POLL_S)
    return one.result.result()
