"""Servers that are spoken to by HTTP: Prefect and the language model; and their clocks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import httpx

from configs.diagnose_schema import DiagnoseConfig
from configs.errors import DeployError
from infra.doctor.findings import Finding, failed, ok, skipped, warning
from infra.prefect_api import ask_version
from infra.track.uris import strip_credentials

TIMEOUT_S = 10.0
SKEW_LIMIT_S = 5.0
"""Clocks that differ by more make logs and heartbeats hard to read together."""
_WORDS = 300


def check_prefect(
    _: threading.Event, url: str | None, headers: Mapping[str, str], version_here: str
) -> list[Finding]:
    """The server, and its clock."""
    if not url:
        return [
            skipped(
                "Prefect",
                "PREFECT_API_URL is not set: each command starts a server of its own; scheduled runs "
                "need one (docs/deploy.md)",
            )
        ]
    shown = strip_credentials(url)
    asked_at = time.time()
    try:
        answer = ask_version(url, headers, timeout_s=TIMEOUT_S)
    except DeployError as error:
        return [failed("Prefect", strip_credentials(str(error)))]
    clock = judge_date("clock of Prefect", asked_at, time.time(), answer.date)
    if _minor(answer.version) < _minor(version_here):
        return [
            warning(
                "Prefect",
                f"the server at {shown} is {answer.version}, older than the Prefect here "
                f"({version_here}): bring it to the same version",
            ),
            clock,
        ]
    return [ok("Prefect", f"server {answer.version} at {shown}"), clock]


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def judge_date(subject: str, asked_at: float, answered_at: float, date: str | None) -> Finding:
    """By the date of an answer, which is cut to whole seconds."""
    if date is None:
        return skipped(subject, "the server's answers carry no date")
    try:
        there = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return skipped(subject, f"the server's date {date!r} cannot be read")
    return judge_clock(subject, asked_at - 1.0, answered_at, there)


def judge_clock(subject: str, earliest: float, latest: float, there: float) -> Finding:
    """`there`: a clock that was read at a moment between the other two, by the clock here."""
    skew = max(earliest - there, there - latest, 0.0)
    if skew > SKEW_LIMIT_S:
        side = "behind" if there < earliest else "ahead of"
        return warning(
            subject, f"{skew:.0f} s {side} the clock here: run NTP (chrony) on both machines"
        )
    return ok(subject, "agrees with the clock here, as far as can be told")


def check_language_model(_: threading.Event, config: DiagnoseConfig) -> Finding:
    """Whether the server answers, takes the key, and has the model. Asks it nothing."""
    subject = "language model"
    if config.endpoint is None:
        return skipped(
            subject, "diagnose.endpoint is not set: failures are diagnosed by rules alone"
        )
    key = os.environ.get(config.api_key_env or "") or ""
    if config.api_key_env and not key:
        return failed(
            subject,
            f"the environment variable {config.api_key_env} is not set: it holds the API key",
        )
    url, shown = config.endpoint.rstrip("/"), strip_credentials(config.endpoint)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        response = httpx.get(f"{url}/models", headers=headers, timeout=TIMEOUT_S)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        words = strip_credentials(str(error)) or type(error).__name__
        return failed(subject, f"{shown} cannot be reached ({words}): check diagnose.endpoint")
    if response.status_code in (401, 403):
        return failed(
            subject,
            f"{shown} does not take the key ({response.status_code}): check diagnose.api_key_env",
        )
    if response.is_error:
        return warning(
            subject,
            f"{shown} answers, but lists no models ({response.status_code}): cannot tell more",
        )
    names = _model_names(response)
    if names is None:
        return failed(
            subject, f"{shown} is no OpenAI-compatible server: its address mostly ends with /v1"
        )
    if config.model not in names:
        there = ", ".join(names[:5]) or "none"
        return failed(
            subject,
            f"{shown} has no model {config.model!r}: set diagnose.model to one of {there}"[:_WORDS],
        )
    return ok(subject, f"{shown} has {config.model}")


def _model_names(response: httpx.Response) -> list[str] | None:
    try:
        return [str(model["id"]) for model in response.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return None
