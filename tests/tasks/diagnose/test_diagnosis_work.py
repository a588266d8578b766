"""Lines that say much in a few characters, again and again: each is taken apart once, not for every line."""

from __future__ import annotations

from collections.abc import Iterable
from time import process_time

import pytest

from tasks.diagnose.causes import told_and_mentioned
from tasks.diagnose.host_lists import HostLists
from tasks.diagnose.logs import LogLine, split_prefix
from tasks.diagnose.rules import default_rules
from tasks.diagnose.scan import Scan
from tasks.diagnose.topology import Topology

MOST_S = 2.0
"""Of processor time. All take a fraction of it; written out for every line, they would take far more."""


def read(texts: Iterable[str]) -> Iterable[LogLine]:
    for number, text in enumerate(texts, start=1):
        rank, body = split_prefix(text)
        yield LogLine("x.log", number, rank, text, body)


@pytest.mark.parametrize(
    "text",
    [
        "nodelist: a[0-9999]",
        "nodelist: a[0-{n}]",
        "srun: error: gpu01: tasks 0-19999: Killed",
        "srun: error: gpu01: tasks {n}-19999: Killed",
    ],
)
def test_lists_of_thousands_are_not_written_out_for_every_line(text: str) -> None:
    topology, start_s = Topology(), process_time()
    for line in read(text.format(n=9999 - n) for n in range(2000)):
        topology.feed(line)
    assert process_time() - start_s < MOST_S
    assert len(topology.job_hosts) in (0, 10_000)


def test_a_list_that_comes_again_tells_what_stands_behind_it() -> None:
    topology = Topology()
    for line in read(["hosts: gpu[01-02]", "hosts: gpu[01-02] gpu03"]):
        topology.feed(line)
    assert topology.job_hosts == {"gpu01", "gpu02", "gpu03"}


@pytest.mark.parametrize(
    "text",
    ["ab1: ranks 0-4095", "0-4094 ab1 4095-4095 ab2", "sample-{n:06d}"],
)
def test_lists_of_hosts_are_kept_in_linear_time(text: str) -> None:
    lists, start_s = HostLists(), process_time()
    for n in range(14_000):
        lists.feed(text.format(n=n), None)
    assert process_time() - start_s < MOST_S
    assert max(len(lists.hosts), len(lists.ranges)) in (4096, 14_000)


def test_thousands_of_errors_that_lines_mention_are_judged_in_linear_time() -> None:
    texts = (f"[rank{n}]: shard reader met ValueError: bad shard {n}" for n in range(3000))
    scan = Scan(default_rules()).read(read(texts))
    start_s = process_time()
    told, mentioned = told_and_mentioned(scan)
    assert process_time() - start_s < MOST_S
    assert (len(told), len(mentioned)) == (3000, 0)
