"""torchrun's agents speak each of their own workers: those of two nodes are not taken for each other."""

from __future__ import annotations

from tasks.diagnose.logs import make_line
from tasks.diagnose.sources import Source
from tasks.diagnose.torchrun import TorchrunReader

CLOSING = (
    "W0101 10:00:02 torch/distributed/elastic/api.py:900] Sending process 71 closing signal SIGTERM"
)
FAILED = "E0101 10:00:01 torch/distributed/elastic/api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 71) of binary: python"
RESTARTS = "I0101 10:00:03 torch/distributed/elastic/agent.py:900] [default] Worker group FAILED. 2/3 attempts left; will restart worker group"
TOLD = "W0101 10:00:01 torch/distributed/elastic/api.py:699] Received 15 death signal, shutting down workers"
TABLES = """
0: Root Cause (first observed failure):
1: Root Cause (first observed failure):
0: [0]:
1: [0]:
0:   host      : gn01
1:   host      : gn02
0:   rank      : 1 (local_rank: 1)
1:   rank      : 9 (local_rank: 1)
0:   exitcode  : -15 (pid: 71)
1:   exitcode  : -9 (pid: 71)
"""


def reader_of(files: dict[str, str]) -> TorchrunReader:
    reader = TorchrunReader()
    for name, text in files.items():
        for number, piece in enumerate(text.encode().splitlines(), start=1):
            if (line := make_line(piece, number, Source(None, name))) is not None:
                reader.feed(line)
    return reader


def test_a_process_that_another_nodes_agent_ended_has_not_ended_this_one() -> None:
    """In containers, processes of all nodes have the same numbers."""
    for files in (
        {"node0.log": CLOSING, "node1.log": FAILED},
        {"job.log": f"0: {CLOSING}\n1: {FAILED}\n"},
    ):
        assert [death.exit_code for death in reader_of(files).own_deaths()] == [-9]
    assert reader_of({"job.log": f"{CLOSING}\n{FAILED}\n"}).own_deaths() == []


def test_tables_that_two_agents_print_at_the_same_time_are_kept_apart() -> None:
    reader = reader_of({"job.log": TABLES})
    found = {(f.rank, f.host, f.exit_code) for f in reader.failures.values()}
    assert found == {(1, "gn01", -15), (9, "gn02", -9)}
    assert reader.failure_of(71) is None  # It may be either.


def test_another_nodes_restart_is_not_the_end_of_what_this_ones_agent_reports() -> None:
    again = f"{TOLD}\n{FAILED}\n{RESTARTS}\n"
    files = {"node0.log": f"{again}{TOLD}\n{FAILED}\n", "node1.log": again}
    reader = reader_of(files)
    assert [death.line.number for death in reader.own_deaths()] == [5]
    assert reader.told_to_stop is not None
    assert reader_of({"node0.log": again}).own_deaths() == []
