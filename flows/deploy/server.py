"""A client of a Prefect server that answers, is new enough, and lets us."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_KEY,
    PREFECT_API_URL,
    temporary_settings,
)

from configs.errors import ConfigError
from infra.prefect_api import ask_version, refusal, unreachable

_TIMEOUT_S = 15.0


@contextmanager
def connected(url: str | None) -> Iterator[SyncPrefectClient]:
    """A client of the server at `url`, else at PREFECT_API_URL.

    What goes wrong with the server, here or within the block, is a DeployError of one sentence.
    """
    url = (url or PREFECT_API_URL.value() or "").rstrip("/")
    if not url:
        raise ConfigError(
            "no Prefect server is named: set PREFECT_API_URL or give --server, like "
            "http://login:4200/api"
        )
    # Before Prefect's client is: it would try for a minute where nobody listens.
    ask_version(url, credentials(), timeout_s=_TIMEOUT_S)
    with temporary_settings({PREFECT_API_URL: url}):
        try:
            with get_client(sync_client=True, httpx_settings={"timeout": _TIMEOUT_S}) as client:
                yield client
        except (PrefectHTTPStatusError, httpx.HTTPStatusError) as error:
            raise refusal(url, error.response) from error
        except httpx.TransportError as error:
            raise unreachable(url, error) from error


def credentials() -> dict[str, str]:
    """Headers as Prefect's own client sends them, by its settings."""
    if key := PREFECT_API_KEY.value():
        return {"Authorization": f"Bearer {key}"}
    if login := PREFECT_API_AUTH_STRING.value():
        text = login.get_secret_value() if hasattr(login, "get_secret_value") else str(login)
        return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}
    return {}
