"""How much memory this process may still use: what the node has, within the limits of its control groups.

A job of a cluster has such a limit, and what it writes to /dev/shm counts towards it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_NAMES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Controller (none: version 2) -> files with the limit and the use, and what of it can be given back."""


def available_memory_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """What is left on the node, or of the narrowest limit."""
    limits = _left_of_limits(proc / "self" / "cgroup", cgroups)
    return min([_left_on_node(proc / "meminfo"), *limits])


def _left_on_node(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return sys.maxsize


def _left_of_limits(own: Path, cgroups: Path) -> Iterator[int]:
    """Of each group that the process is in, up to the root."""
    with suppress(FileNotFoundError):
        for line in own.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            for controller in set(controllers.split(",")) & set(_NAMES):
                root = cgroups / controller
                folder = root / name.lstrip("/")
                for group in (folder, *folder.parents):
                    if not group.is_relative_to(root):
                        break
                    if (left_bytes := _left(group, *_NAMES[controller])) is not None:
                        yield left_bytes


def _left(group: Path, limit: str, used: str, cache: str) -> int | None:
    """None: no limit, or no such group (a container sees only its own, as the root)."""
    try:
        limit_bytes = (group / limit).read_text().strip()
        used_bytes = int((group / used).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except FileNotFoundError:
        return None
    if limit_bytes == "max":
        return None
    return max(0, int(limit_bytes) - used_bytes + int(statistics.get(cache, 0)))
