"""Who does not come: ranks that never reported, hosts that stand idle, pods that are known by their node."""

from __future__ import annotations

import pytest

from tasks.diagnose.absence import IdleHosts, RollCall, tells_presence
from tasks.diagnose.logs import LogLine
from tasks.diagnose.pods import Pods


def roll_call(texts: list[str]) -> RollCall:
    found = RollCall()
    for text in texts:
        found.feed(LogLine("a.log", 1, None, text, text))
    return found


@pytest.mark.parametrize(
    "wording",
    [
        "Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {one}/16",
        "hello from rank {rank}/16",
    ],
)
def test_the_rank_that_did_not_report_is_missing(wording: str) -> None:
    texts = [wording.format(rank=rank, one=rank + 1) for rank in range(16) if rank != 9]
    assert all(tells_presence(text) for text in texts)
    assert roll_call(texts).missing(set()) == {9}
    assert roll_call([*texts, wording.format(rank=9, one=10)]).missing(set()) == set()


def test_where_most_are_missing_nobody_is_named() -> None:
    assert roll_call(["hello from rank 0/16", "hello from rank 1/16"]).missing(set()) == set()


def test_two_roll_calls_are_one() -> None:
    first = roll_call([f"rank {rank} of 8" for rank in range(4)])
    first.merge(roll_call([f"rank {rank} of 8" for rank in range(4, 7)]))
    assert first.missing(set()) == {7}


def test_the_rank_that_did_not_write_what_all_others_wrote_last_is_missing() -> None:
    found = RollCall()
    for rank in (3, 0, 2, 1, 4, 5, 7):
        body = f"12:00:{rank:02} optimizer shard {rank + 1}/8 written ({rank}.18 GiB)"
        found.feed(LogLine("a.log", 1, rank, f"[rank{rank}]: {body}", body))
    assert found.missing(set(range(8))) == {6}
    found.feed(LogLine("a.log", 2, 0, "[rank0]: step 7", "step 7"))
    assert found.missing(set(range(8))) == set()  # One rank tells of all.


def idle_of(utils: dict[str, str]) -> str | None:
    hosts = IdleHosts()
    for host, util in utils.items():
        text = f"[smi] 2025-10-01 13:32:00 {host} util={util} power=600W"
        hosts.feed(LogLine("a.log", 1, None, text, text), 0)
    return hosts.only_idle()


def test_of_hosts_that_spin_in_a_collective_the_idle_one_is_the_cause() -> None:
    busy = {"gn-01": "98,100", "gn-02": "99,97", "gn-04": "100,100"}
    assert idle_of({**busy, "gn-03": "0,0"}) == "gn-03"
    assert idle_of(busy) is None
    assert idle_of({**busy, "gn-03": "0,0", "gn-05": "0,0"}) is None
    assert idle_of({"gn-01": "98,100", "gn-03": "0,0"}) is None  # Of two, either may wait.


def test_pods_are_placed_by_launchers_schedulers_and_listings() -> None:
    pods = Pods()
    pods.feed("[launch] pod pretrain-worker-1 on ip-10-4-11-40 ranks 8-15")
    pods.feed("Normal Scheduled Successfully assigned llm/pretrain-worker-2 to ip-10-4-11-62")
    for text in (
        "Name:             ft-0",
        "Namespace:  research",
        "Node:  onprem-17/192.168.20.117",
    ):
        pods.feed(text)
    pods.feed("      Reason:       OOMKilled")
    assert pods.described == "onprem-17"
    pods.feed("ft-1: {'loss': 2.3}")
    assert pods.described is None
    assert pods.nodes == {
        "pretrain-worker-1": "ip-10-4-11-40",
        "pretrain-worker-2": "ip-10-4-11-62",
        "ft-0": "onprem-17",
    }
