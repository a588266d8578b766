"""Checks are made side by side, each within its limit, whatever they do."""

from __future__ import annotations

import threading
import time

import pytest

from infra.doctor.findings import Check, Finding, Status, examine, failed, ok, skipped


def check(subject: str, look: object, limit_s: float = 30.0) -> Check:
    return Check("group", subject, look, limit_s)  # type: ignore[arg-type]


def test_findings_come_in_order_whatever_ends_first() -> None:
    second_is_done = threading.Event()

    def first(stop: threading.Event) -> Finding:
        assert second_is_done.wait(20)
        return ok("first", "")

    def second(stop: threading.Event) -> list[Finding]:
        second_is_done.set()
        return [ok("second", ""), skipped("third", "")]

    found = [findings for _, findings in examine([check("first", first), check("second", second)])]
    assert found == [(ok("first", ""),), (ok("second", ""), skipped("third", ""))]


def test_one_that_breaks_or_hangs_is_a_finding_and_ends_no_other() -> None:
    tidied = threading.Event()

    def breaks(stop: threading.Event) -> Finding:
        raise ValueError("of its own")

    def hangs(stop: threading.Event) -> Finding:
        stop.wait(60)
        tidied.set()
        return ok("hangs", "")

    checks = [check("breaks", breaks), check("hangs", hangs, 0.2)]
    broken, late = (findings[0] for _, findings in examine(checks))
    assert broken == failed("breaks", "the check itself broke: ValueError: of its own")
    assert late.status is Status.FAILED
    assert "no end within 0.2 s" in late.sentence
    assert tidied.is_set()


def test_who_goes_away_has_the_checks_tidy_up() -> None:
    tidied = threading.Event()

    def waits(stop: threading.Event) -> Finding:
        stop.wait(60)
        time.sleep(0.1)
        tidied.set()
        return ok("waits", "")

    def quick(stop: threading.Event) -> Finding:
        return ok("quick", "")

    with pytest.raises(KeyboardInterrupt):
        for _ in examine([check("quick", quick), check("waits", waits)]):
            raise KeyboardInterrupt
    # The generator is closed when it is collected, at the latest now.
    assert tidied.wait(20)
