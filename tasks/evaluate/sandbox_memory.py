"""The memory of all processes of a piece of confined work, counted from outside.

Memory that a process has from the scorer by fork is shared, and counts for nothing: only what is beyond it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

_COUNTED = ("RssAnon:", "RssShmem:")
_KIB = 1024


def own_bytes(process_id: int | str = "self") -> int:
    """Memory of a process that is no file's, in bytes; 0 when it is gone."""
    with suppress(OSError):
        lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
        return _KIB * sum(int(line.split()[1]) for line in lines if line.startswith(_COUNTED))
    return 0


def bytes_of_all(process_id: int, inherited_bytes: int) -> int:
    """Memory of a process and all that come from it, each beyond what it has inherited."""
    with suppress(psutil.Error):
        children = psutil.Process(process_id).children(recursive=True)
        found = (own_bytes(child.pid) for child in children)
        return sum(max(size - inherited_bytes, 0) for size in found)
    return 0
