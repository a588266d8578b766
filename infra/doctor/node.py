"""Run by the doctor's job on each of its nodes, as a program of its own: what the node sees.

    node.py FOLDER NODES

In FOLDER, on the storage that all share:

    hello                 written before the job was submitted
    lock                  held by the doctor
    ready-NODE            this node is there
    go                    made once the doctor has seen all nodes
    clock-NODE            this node's clock, right after it saw `go`
    answer-NODE           what it found; written last
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

PEER_LIMIT_S = 60.0
"""A network file system may show new files late."""
_PROBE_LIMIT_S = 120.0
_POLL_S = 0.05


def main(folder: Path, nodes: int, peer_limit_s: float = PEER_LIMIT_S) -> None:
    name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    _write(folder / f"ready-{name}", {})
    deadline = time.monotonic() + peer_limit_s
    seen = wait_for(lambda: (folder / "go").exists(), deadline)
    _write(folder / f"clock-{name}", {"time": time.time(), "seen": seen})
    answer: dict[str, Any] = {
        "node": name,
        "hello": (folder / "hello").read_text() if (folder / "hello").exists() else None,
        "peers": _peers(folder, nodes, deadline),
        "lock_is_seen": lock_is_seen(folder / "lock"),
        "python": sys.version.split()[0],
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "memory_free_bytes": _free("/dev/shm"),  # noqa: S108
        "network_interfaces": network_interfaces(),
        "has_gpu_device": any(map(os.path.exists, ("/dev/nvidia0", "/dev/kfd"))),
        "torch": _torch(),
    }
    _write(folder / f"answer-{name}", answer)


def wait_for(condition: Any, deadline: float) -> bool:
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def lock_is_seen(path: Path) -> bool | str:
    """Whether the lock that the doctor holds on its machine keeps others off on this one."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return str(error.strerror)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        return str(error.strerror)
    finally:
        os.close(descriptor)
    return False


def _peers(folder: Path, nodes: int, deadline: float) -> list[str]:
    """Which nodes' files are seen from here; waits for as many as there should be."""
    wait_for(lambda: len(list(folder.glob("ready-*"))) >= nodes, deadline)
    return sorted(path.name.removeprefix("ready-") for path in folder.glob("ready-*"))


def _torch() -> Any:
    probe = Path(__file__).with_name("probe_torch.py")
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(probe), "torch"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_LIMIT_S,
            check=False,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return f"no end within {_PROBE_LIMIT_S:g} s"
    except (ValueError, IndexError):
        return f"its process ended with {done.returncode}: {done.stderr.strip()[-200:]}"


def network_interfaces() -> dict[str, bool]:
    """Name -> whether it has an IPv4 address, which ranks need to meet."""
    return {
        name: any(address.family == socket.AF_INET for address in addresses)
        for name, addresses in psutil.net_if_addrs().items()
    }


def _free(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _write(path: Path, value: Any) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
