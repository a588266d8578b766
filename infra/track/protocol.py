"""What a flow and its follower agree on: environment, and the word on the follower's stdin."""

from __future__ import annotations

CONFIG_VARIABLE = "OVERLAND_TRACKING_CONFIG"
"""TrackingConfig as JSON: a URI may hold a password, and arguments show in `ps`."""
FLOW_RUN_VARIABLE = "OVERLAND_PREFECT_FLOW_RUN_ID"
FINISH_WORD = b"finish"
