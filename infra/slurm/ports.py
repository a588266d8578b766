"""Ports for a cluster: whether they are free, and some that nobody else is given at the same time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from configs.errors import InputError

LAST_PORT = 65535
_FIRST, _END, _BLOCK = 20000, 32000, 100
"""Below the ports that the system gives to clients."""


def is_free(port: int) -> bool:
    """Whether a server could listen there on loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def reserved_ports(count: int) -> Iterator[int]:
    """The first of `count` free ports in a row, which nobody else on this machine is given until the
    block ends.

    A block of ports is held by an abstract socket of its name: it is no file, and ends with the process.
    """
    if count > _BLOCK:
        raise InputError(f"a cluster on ports of its own has at most {_BLOCK} of them, not {count}")
    for base in range(_FIRST, _END, _BLOCK):
        with socket.socket(socket.AF_UNIX) as mark:
            try:
                mark.bind(f"\0overland-slurm-ports-{base}")
            except OSError:
                continue
            if all(map(is_free, range(base, base + count))):
                yield base
                return
    raise InputError(f"there are no {count} free ports in a row between {_FIRST} and {_END}")
