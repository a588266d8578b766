"""The port where the ranks of several nodes meet is kept for them from when it is chosen."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from configs.errors import LaunchError
from infra.launch import slurm_node


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    yield
    for probe in slurm_node._reserved:
        probe.close()
    slurm_node._reserved.clear()


def test_it_is_kept_from_others_and_not_from_the_ranks_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = slurm_node._reserved_port()
    assert port in slurm_node._PORTS
    # Another job on this node that looks for one.
    monkeypatch.setattr(slurm_node, "_PORTS", range(port, port + 1))
    with pytest.raises(LaunchError, match=f"no port between {port} and {port + 1} is free"):
        slurm_node._reserved_port()
    # As torch's store does it, whichever it is made with.
    with socket.socket() as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("", port))
        store.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(slurm_node, "_PORTS", range(port, port + 1))
        with pytest.raises(LaunchError, match="is free on this node"):
            slurm_node._reserved_port()
