"""Faults that are told of hosts beside the job's own, and how the job's own are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.diagnose.one_log import verdict_on

ENVIRONMENT = [
    f"pan{1 + rank // 2}: WORLD_SIZE=6 RANK={rank} LOCAL_RANK={rank % 2} MASTER_ADDR=pan1"
    for rank in range(6)
]
FAULT = [
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 71, in <module>',
    "AssertionError: 512 != 4 * 2 * 6",
]


@pytest.mark.parametrize(
    ("host", "name"), [("pan7", "AssertionError"), ("pan2", "ECCError"), ("rack-b", "ECCError")]
)
def test_a_node_that_was_drained_before_is_none_of_the_jobs(
    tmp_path: Path, host: str, name: str
) -> None:
    note = f"sbatch: NOTE {host} is drained (reason: Xid 48 on Aug 24), job resized"
    assert verdict_on(tmp_path, [note, *ENVIRONMENT, *FAULT]).failure_class == name


def test_where_not_all_hosts_are_known_each_may_be_the_jobs(tmp_path: Path) -> None:
    lines = ["pan3 kernel: NVRM: Xid (PCI:0000:4e:00): 48, pid=7", *ENVIRONMENT[:4], *FAULT]
    assert verdict_on(tmp_path, lines).failure_class == "ECCError"


@pytest.mark.parametrize("order", ["WORLD_SIZE=6 RANK={0} LOCAL_RANK=0", "rank={0} local_rank=0"])
def test_what_ranks_are_told_of_the_master_hides_no_host(tmp_path: Path, order: str) -> None:
    places = [
        f"pan{1 + r // 2}: {order.format(r)} MASTER_ADDR=pan1 MASTER_PORT=2" for r in range(6)
    ]
    error = "[rank5]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
    assert verdict_on(tmp_path, [*places, error]).faulty_node == "pan3"
