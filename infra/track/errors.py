"""The two ways in which MLflow does not take what it is told."""

from __future__ import annotations

from configs.errors import TrackingError


class TrackingUnreachableError(TrackingError):
    """MLflow does not answer, or not now: the same call may succeed later."""


class TrackingRefusedError(TrackingError):
    """MLflow answers, and does not accept what it was told."""
