"""The name of this node, as launchers know it."""

from __future__ import annotations

import os

NODE_VARIABLE = "OVERLAND_NODE"
"""Environment variable: the node's name, set by a launcher that knows it by another than its own."""


def node_name() -> str:
    """What the launcher calls this node; without one, the machine's own name."""
    return os.environ.get(NODE_VARIABLE) or os.uname().nodename
