"""Checks of the `evaluate.regressions` section. A webhook's URL is a secret: no message repeats it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from configs.regression_schema import RegressionConfig

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_VARIABLE = 64
_SECTION = "evaluate.regressions"


def check_regressions(regressions: RegressionConfig) -> Iterator[str]:
    """A sentence for each setting that cannot be meant so."""
    if not regressions.enabled:
        return
    window, least = regressions.window, regressions.min_history
    if least > window:
        yield (
            f"{_SECTION}.min_history ({least}) must be at most {_SECTION}.window ({window}), the "
            f"checkpoints that are compared: {window} would fit"
        )
    named = [threshold.metric for threshold in regressions.thresholds]
    for metric in sorted({m for m in named if named.count(m) > 1}):
        yield f"{_SECTION}.thresholds names {metric} twice: once is enough"
    for key, names in (("metrics", regressions.metrics), ("thresholds", named)):
        for name in names:
            if not all(part.strip() for part in name.split("/")):
                yield (
                    f"{_SECTION}.{key}: {name!r} is no metric: give TASK/METRIC as in scores.json, like "
                    "heldout_cloze/acc, or TASK"
                )
    if regressions.webhook_env is not None:
        yield from _check_webhook(regressions.webhook_env)


def _check_webhook(name: str) -> Iterator[str]:
    if not _VARIABLE.fullmatch(name) or len(name) > _LONGEST_VARIABLE:
        yield (
            f"{_SECTION}.webhook_env must be the name of an environment variable, like ALERT_URL; what "
            "it holds now is not shown, for it may be the URL itself"
        )
        return
    value = os.environ.get(name)
    if not value:
        yield (
            f"{_SECTION}.webhook_env names {name}, which is not set: put the webhook's URL there, or "
            "leave it out"
        )
    elif not _is_web_address(value):
        yield (
            f"{_SECTION}.webhook_env names {name}, which holds no URL (it is not shown): it must begin "
            "with https:// or http:// and name a host"
        )


def _is_web_address(value: str) -> bool:
    try:
        url = urlsplit(value)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no number, or an unfinished IPv6 address
        return False
