"""Levels and messages of structured logs, by whatever keys a logger has for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.diagnose.one_log import verdict_on

_STEP = '{"lvl": "INFO", "m": "step 5 loss 2.3"}'
_SLOW = "upload of rank3.bin, attempt 1/5: Please reduce your request rate."
_FATAL = "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL"


@pytest.mark.parametrize(
    "level",
    ['"lvl": "WARNING"', '"level":"warn"', '"sev":"W"', '"log.level": "NOTICE"', '"level":40', '"l":"W"'],
)  # fmt: skip
def test_what_is_tried_again_is_no_cause(tmp_path: Path, level: str) -> None:
    warned = f'{{"t": 1, {level}, "m": "{_SLOW}"}}'
    verdict = verdict_on(tmp_path, [_STEP, warned, warned, _FATAL])
    assert (verdict.failure_class, verdict.root_cause_line) == ("S3StorageError", 4)


@pytest.mark.parametrize(
    "level", ['"lvl": "ERROR"', '"sev":"crit"', '"level":50', '"loglevel":"error"']
)
@pytest.mark.parametrize("key", ["m", "msg", "text", "body", "@message"])
def test_an_errors_record_is_read(tmp_path: Path, level: str, key: str) -> None:
    traceback = f'{{"t": 1, {level}, "{key}": "Traceback (most recent call last):\\n  File \\"a.py\\", line 402, in up\\n    up()\\n  ..."}}'
    verdict = verdict_on(tmp_path, [_STEP, traceback, f'{{"t": 1, {level}, "{key}": "{_FATAL}"}}'])
    assert (verdict.failure_class, verdict.root_cause_line) == ("S3StorageError", 3)


def test_who_notices_a_hang_may_only_warn(tmp_path: Path) -> None:
    noticed = '{"lvl":"W","msg":"progress monitor: no step since 5 for 5400 s, dumping stacks"}'
    verdict = verdict_on(tmp_path, [_STEP, noticed])
    assert (verdict.failure_class, verdict.root_cause_line) == ("Hang", 2)
