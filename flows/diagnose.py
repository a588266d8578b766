"""Flow: logs of any job -> verdict, on a schedule or from the Prefect page."""

from __future__ import annotations

from typing import Any

from prefect import flow

from configs.errors import InputError
from tasks.diagnose.task import diagnose_logs


@flow(name="diagnose")
def diagnose(paths: list[str]) -> list[dict[str, Any]]:
    """Diagnose each of the log files or directories; what cannot be read fails the flow by name."""
    if not paths:
        raise InputError("say which logs to diagnose: files or directories")
    return [found for path in paths for found in diagnose_logs(path)]
