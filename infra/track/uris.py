"""Where MLflow is: the tracking URI, the place of artifacts, and neither with a password in sight."""

from __future__ import annotations

import re
from pathlib import Path

from configs.rundir import RunDir
from configs.schema import TrackingConfig

_SQLITE = "sqlite:///"
_DATABASES = ("postgresql", "mysql", "mssql", "oracle")
_USER_INFO = re.compile(r"(?<=://)[^/\s\"']*@")
_SECRET_QUERY = re.compile(
    r"(?i)([?&](?:\w*password|passwd|pwd|\w*token|\w*secret|api_?key)=)[^&\s\"']+"
)


def resolve_tracking_uri(config: TrackingConfig, run: RunDir) -> str:
    """The tracking URI: as configured, or SQLite in mlflow.db beside the run directories."""
    return config.uri or f"{_SQLITE}{run.path.absolute().parent / 'mlflow.db'}"


def sqlite_path(uri: str) -> Path | None:
    """The database file of a SQLite URI; None for any other."""
    if not uri.startswith(_SQLITE):
        return None
    return Path(uri.removeprefix(_SQLITE).partition("?")[0]).absolute()


def artifact_location(uri: str, run: RunDir) -> str | None:
    """Where a new experiment keeps artifacts: mlartifacts/ beside the SQLite file, or beside the
    run directories for another database. None: the tracking server decides."""
    database = sqlite_path(uri)
    if database is not None:
        return (database.parent / "mlartifacts").as_uri()
    if uri.startswith(_DATABASES):
        return (run.path.absolute().parent / "mlartifacts").as_uri()
    return None


def strip_credentials(text: str) -> str:
    """`text` without the user:password@ and secret query values of the URIs in it."""
    return _SECRET_QUERY.sub(r"\1***", _USER_INFO.sub("", text))
