"""The little of a Prefect server's HTTP interface that needs no Prefect: is it there, and how old is it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from configs.errors import DeployError

MINIMUM_VERSION = (3, 9)
"""That of the oldest client that is used here; older servers refuse some of what it sends."""


@dataclass(frozen=True)
class PrefectAnswer:
    """What a server says of itself."""

    version: str
    date: str | None
    """Its clock, as HTTP writes it."""


def ask_version(url: str, headers: Mapping[str, str], *, timeout_s: float) -> PrefectAnswer:
    """The server's version; DeployError, in one sentence, when there is no such server or it refuses.

    `headers` carry the credentials.
    """
    if not url.startswith(("http://", "https://")):
        raise DeployError(f"{url} is no server's address: http://login:4200/api would be one")
    try:
        response = httpx.get(f"{url}/admin/version", headers=headers, timeout=timeout_s)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise unreachable(url, error) from error
    if response.is_error:
        raise refusal(url, response)
    try:
        version = response.json()
    except ValueError:
        version = None
    if not isinstance(version, str):
        raise _no_api(url)
    _check_version(url, version)
    return PrefectAnswer(version, response.headers.get("date"))


def _check_version(url: str, text: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", text)
    if numbers is None:
        raise DeployError(f"{url} calls itself version {text!r}, which no Prefect server does")
    if (int(numbers[1]), int(numbers[2])) < MINIMUM_VERSION:
        needed = ".".join(map(str, MINIMUM_VERSION))
        raise DeployError(
            f"the Prefect server at {url} is {text}, which is too old: {needed} or newer is needed"
        )


def unreachable(url: str, error: Exception) -> DeployError:
    """For a server that does not answer."""
    return DeployError(
        f"the Prefect server at {url} cannot be reached ({error or type(error).__name__}): is it "
        "running, and is PREFECT_API_URL right?"
    )


def refusal(url: str, response: httpx.Response) -> DeployError:
    """For a server that answers with an error."""
    if response.status_code in (401, 403):
        return DeployError(
            f"the Prefect server at {url} does not let us ({response.status_code}): set "
            "PREFECT_API_AUTH_STRING=USER:PASSWORD (or PREFECT_API_KEY) to an account that may "
            "change deployments"
        )
    if response.status_code == 404 and response.request.url.path.endswith("/admin/version"):
        return _no_api(url)
    words = " ".join(response.text.split())[:300]
    return DeployError(
        f"the Prefect server at {url} refused {response.request.method} "
        f"{response.request.url.path} with {response.status_code}: {words}"
    )


def _no_api(url: str) -> DeployError:
    return DeployError(
        f"{url} is no Prefect server's API: its address ends with /api, like http://login:4200/api"
    )
