"""Tracking: MLflow as a view of the run directory.

    follower = start_follower(run, config.tracking)     # a process beside the flow
    ...
    follower.finish(config.tracking.flush_timeout_s)    # True: MLflow was told everything

The follower (:mod:`infra.track.follow`) is the only one that talks to MLflow. Training and flows
write the run directory and wait for nothing; what MLflow missed is told later from there.

    process.py, protocol.py   what flows use          points.py   records -> metrics, params, tags
    follow.py                 the follower process    spans.py    records -> trees of spans
    view.py                   one pass ...            uris.py     where MLflow is, no passwords
    attempts.py, checkpoints.py   ... its parts       server.py, traces.py   MLflow, repeatable
    cursor.py, telling.py     how far it is told      errors.py   what MLflow may answer
"""

from __future__ import annotations

from infra.track.process import (
    Follower,
    TrackingState,
    catch_up,
    start_follower,
    tracking_state,
)
from infra.track.uris import resolve_tracking_uri

__all__ = [
    "Follower",
    "TrackingState",
    "catch_up",
    "resolve_tracking_uri",
    "start_follower",
    "tracking_state",
]
