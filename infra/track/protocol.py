"""What a flow and its follower agree on: environment, the word on its stdin, its exit code."""

from __future__ import annotations

CONFIG_VARIABLE = "OVERLAND_TRACKING_CONFIG"
"""TrackingConfig as JSON: a URI may hold a password, and arguments show in `ps`."""
FLOW_RUN_VARIABLE = "OVERLAND_PREFECT_FLOW_RUN_ID"
FINISH_WORD = b"finish"
EXIT_TOLD_BY_ANOTHER = 3
"""Another flow's follower was at work to the end: it tells MLflow what this one would have."""
