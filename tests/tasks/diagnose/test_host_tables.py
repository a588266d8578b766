"""Hosts that lines of one wording tell, whatever the wording; and tables that are of something else."""

from __future__ import annotations

import pytest

from tasks.diagnose.host_names import may_name_host
from tasks.diagnose.host_tables import HostTables
from tasks.diagnose.logs import LogLine, split_prefix
from tasks.diagnose.topology import Topology


def lines(texts: list[str]) -> list[LogLine]:
    return [LogLine("a.log", at, *_split(text)) for at, text in enumerate(texts, start=1)]


def _split(text: str) -> tuple[int | None, str, str]:
    rank, body = split_prefix(text)
    return rank, text, body


def tables(texts: list[str]) -> HostTables:
    found = HostTables()
    for line in lines(texts):
        found.feed(line)
    return found


def topology(texts: list[str]) -> Topology:
    found = Topology()
    for line in lines(texts):
        found.feed(line)
    found.settle()
    return found


@pytest.mark.parametrize(
    "wording",
    [
        "[1,{rank}]<stdout>: hello from rank {rank}/16 on {host} (gpu {local})",
        "[init] r{rank} @ {host} gpu{local} uuid GPU-{rank:08x}",
        "INFO:root:process {rank} of 16 started on {host}.hpc.example (local rank {local}, NVIDIA A100)",
        "[launcher] global_rank={rank} host={host} local_rank={local}",
        "2025-01-05 19:24:0{local} | {host} | worker up, rank={rank} local_rank={local} pid={rank}77",
        "{host} [rank{rank}]:[titan] step: 5{rank} loss: 2.{rank}",
    ],
)
@pytest.mark.parametrize("hosts", [("tao-a100-14", "tao-a100-15"), ("ws-mn4-a", "ws-mn4-b")])
def test_a_table_of_ranks_is_read_in_any_words(wording: str, hosts: tuple[str, str]) -> None:
    texts = [wording.format(rank=r, host=hosts[r // 8], local=r % 8) for r in range(16)]
    by_rank = tables(texts).by_rank(set())
    assert {r: h.partition(".")[0] for r, h in by_rank.items()} == {
        r: hosts[r // 8] for r in range(16)
    }


@pytest.mark.parametrize(
    "text",
    [
        "ranks 0-7 -> vega-gn16, ranks 8-15 -> vega-gn17",
        "[cluster] vega-gn16 ranks 0-7 | vega-gn17 ranks 8-15",
        "vega-gn16: ranks 0..7; vega-gn17: ranks 8..15",
        "rank 0-7 on vega-gn16; rank 8-15 on vega-gn17",
    ],
)
def test_ranges_of_ranks_are_read(text: str) -> None:
    by_rank = tables([text]).by_rank(set())
    assert (by_rank[0], by_rank[7], by_rank[8], by_rank[15]) == (
        "vega-gn16", "vega-gn16", "vega-gn17", "vega-gn17",
    )  # fmt: skip


def test_first_ranks_tell_the_others() -> None:
    texts = [
        f"n-{i}: worker {i} of 3 up, rank offset {i * 4}, /scratch free 3.1T" for i in range(3)
    ]
    assert tables(texts).by_rank(set()) == {r: f"n-{r // 4}" for r in range(12)}


@pytest.mark.parametrize(
    "wording",
    [
        "rank {rank} uses gpu{local}",
        "rank {rank}: reading shard-{rank}",
        "rank {rank} started thread pool tpool-{rank}",
        "rank {rank} of model replica-{half}",
        "[rank{rank}]: loaded ckpt/node-{half}/x.bin",
        "rank {rank} closed the connection to gpu-n{half}",
    ],
)
def test_tables_of_other_things_are_none(wording: str) -> None:
    texts = [wording.format(rank=r, local=r % 8, half=r % 2) for r in range(16)]
    assert tables(texts).by_rank(set()) == {}


@pytest.mark.parametrize(
    "wording",
    [
        "  {host}   10.42.7.{n}   GPU: 8.0  alive",
        "10.42.7.{n}\t{host} {host}.hal.lan",
        "{host}:9155{n}:9155{n} [0] NCCL INFO Bootstrap : Using enp24s0:10.42.7.{n}<0>",
    ],
)
def test_a_table_of_addresses_is_read_in_any_words(wording: str) -> None:
    texts = [wording.format(host=f"ray-wk-{n}", n=n) for n in (17, 18, 19)]
    assert topology(texts).host("10.42.7.18", None) == "ray-wk-18"


def test_who_complains_of_an_address_is_not_its_host() -> None:
    texts = [
        f"n{a}:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.{b}<5> with status=12"
        for a, b in [(1, 2), (2, 1)]
    ]
    assert topology(texts).host("10.0.0.2", None) == "10.0.0.2"


def test_what_stands_before_lines_names_their_writer() -> None:
    texts = [f"node-r12u0{n}: [rank{n}]: OSError: [Errno 30] Read-only file system" for n in (7, 8)]
    found = topology(texts)
    assert found.writer_of(lines(texts)[1]) == "node-r12u08"


def test_a_list_with_blanks_or_addresses_is_of_several_hosts() -> None:
    for text in ("hosts: gpu-1 gpu-2", "hosts : dgx-b13=10.20.3.13, dgx-b14=10.20.3.14"):
        assert topology([text]).only_host() is None


@pytest.mark.parametrize(
    "name", ["gpu-07", "ip-10-1-7-88", "nid005217", "node3", "g0187", "dgx-b14"]
)
def test_hosts_may_be_named_so(name: str) -> None:
    assert may_name_host(f"{name}.cluster.example") and may_name_host(name)


@pytest.mark.parametrize(
    "name", ["gpu0", "mlx5_0", "enp24s0", "rank12", "step-1000", "libnccl.so.2", "cuda12", "worker"]
)
def test_hosts_are_not_named_so(name: str) -> None:
    assert not may_name_host(name)


def test_a_million_ranks_and_names_take_bounded_memory() -> None:
    found = HostTables()
    for n in range(26_000):
        for line in lines(
            [
                f"rank {n} on host-{n}",
                f"word{n} says rank {n % 7} is at h{n} 10.0.{n % 250}.{n % 251}",
            ]
        ):
            found.feed(line)
    entries = sum(map(len, [*found.ranks.values(), *found.addresses.values()]))
    assert entries <= 50_001 and len(found.ranks) <= 512 and len(found.labels) <= 512


def test_a_host_file_without_end_takes_bounded_memory() -> None:
    found = HostTables()
    for line in lines([f"n{n}-a slots=8" for n in range(25_000)]):
        found.feed(line)
    assert len(found.lists.slots) <= 20_000


def test_of_several_names_of_the_only_host_it_is_always_the_same() -> None:
    found = Topology(hosts={"gpu01", *(f"gpu01.{letter}.example" for letter in "abcdefghijklmn")})
    assert found.only_host() == "gpu01"
