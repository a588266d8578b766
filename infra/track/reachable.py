"""Whether an MLflow tracking URI can be written, without writing anything and without importing MLflow."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from pathlib import Path

import httpx
import sqlalchemy

from infra.track.errors import TrackingUnreachableError
from infra.track.uris import sqlite_path, strip_credentials

_NO_RUN = "0" * 32
_API = "api/2.0/mlflow"


def check_writable(uri: str, *, timeout_s: float) -> str:
    """What is there, in a few words. TrackingUnreachableError, in a sentence, when it cannot be used."""
    if (database := sqlite_path(uri)) is not None:
        return _check_sqlite(database, timeout_s)
    if uri.startswith(("http://", "https://")):
        return _check_server(uri.rstrip("/"), timeout_s)
    return _check_database(uri)


def _check_sqlite(path: Path, timeout_s: float) -> str:
    """One that is not there yet can be made; one that is there can be locked for writing."""
    if not path.exists():
        folder = path.parent
        while not folder.exists():
            folder = folder.parent
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise TrackingUnreachableError(
                f"{path} cannot be made: {folder} cannot be written ({error.strerror})"
            ) from error
        return f"{path} will be made"
    try:
        connection = sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=timeout_s)
        try:
            connection.execute("BEGIN IMMEDIATE")
            count = connection.execute("SELECT count(*) FROM experiments").fetchone()[0]
            connection.rollback()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise TrackingUnreachableError(f"{path} cannot be written: {error}") from error
    return f"{path} can be written ({count} experiments)"


def _check_server(url: str, timeout_s: float) -> str:
    """A change to a run that is not there is refused, but not before it is known who asks."""
    login = (os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD"))
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    shown = strip_credentials(url)
    try:
        with httpx.Client(
            timeout=timeout_s,
            auth=(login[0], login[1]) if login[0] and login[1] else None,
            headers={"Authorization": f"Bearer {token}"} if token else {},
        ) as client:
            found = client.post(f"{url}/{_API}/experiments/search", json={"max_results": 1})
            body = {"run_id": _NO_RUN, "key": "overland", "value": "doctor"}
            changed = client.post(f"{url}/{_API}/runs/set-tag", json=body)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        words = strip_credentials(str(error)) or type(error).__name__
        raise TrackingUnreachableError(f"{shown} cannot be reached ({words})") from error
    for response in (found, changed):
        if response.status_code in (401, 403):
            raise TrackingUnreachableError(
                f"{shown} does not let us ({response.status_code}): set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
            )
    if found.is_error or not _is_refusal(changed):
        raise TrackingUnreachableError(
            f"{shown} does not answer as an MLflow server does ({found.status_code}, "
            f"{changed.status_code})"
        )
    return f"server at {shown} takes changes"


def _is_refusal(response: httpx.Response) -> bool:
    try:
        return bool(response.json()["error_code"] == "RESOURCE_DOES_NOT_EXIST")
    except (ValueError, KeyError, TypeError):
        return False


def _check_database(uri: str) -> str:
    """A statement that needs the right to change, and changes no row."""
    shown = strip_credentials(uri)
    try:
        engine = sqlalchemy.create_engine(uri)
        with engine.connect() as connection:
            if not sqlalchemy.inspect(connection).has_table("experiments"):
                return f"database {shown} is empty, MLflow makes its tables"
            connection.execute(sqlalchemy.text("UPDATE experiments SET name = name WHERE 1 = 0"))
            connection.rollback()
    except Exception as error:  # also a driver that is missing
        lines = strip_credentials(str(error)).splitlines() or [type(error).__name__]
        raise TrackingUnreachableError(f"{shown} cannot be written: {lines[0][:300]}") from error
    return f"database {shown} can be written"
