"""Memory of a node that another user's processes hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.diagnose.host_memory import tells_of_host_memory
from tests.tasks.diagnose.one_log import verdict_on

STEPS = [f"step {n} | loss {3 - n / 100:.3f} | lr 1e-4" for n in range(30)]


def oom(held_by: int, victim: str) -> list[str]:
    """The kernel's table, of two processes."""
    return [
        "g7 kernel: [51.1] python3 invoked oom-killer: gfp_mask=0x140cca, order=0, oom_score_adj=0",
        "g7 kernel: [51.1] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name",
        f"g7 kernel: [51.1] [  41007] {held_by:5} 41007 412009120 387004411 3111223296        0             0 spark",
        "g7 kernel: [51.1] [  90233]  2045 90233 21400112 8800120 81223680        0             0 python3",
        f"g7 kernel: [51.1] Out of memory: Killed process 90233 ({victim}) total-vm:85kB, anon-rss:35kB, UID:2045 pgtables:79kB",
    ]


@pytest.mark.parametrize(
    ("held_by", "victim", "expected"),
    [
        (2007, "pt_data_worker", ("DataloaderKilled", "restart_exclude_node")),
        (2007, "python3", ("CgroupOOM", "restart_exclude_node")),
        (2045, "python3", ("CgroupOOM", "fix_by_user")),
        (2045, "pt_data_worker", ("DataloaderKilled", "restart_same_nodes")),
    ],
)
def test_a_node_that_anothers_processes_fill_is_left_out(
    tmp_path: Path, held_by: int, victim: str, expected: tuple[str, str]
) -> None:
    verdict = verdict_on(tmp_path, [*STEPS, *oom(held_by, victim)])
    assert (verdict.failure_class, verdict.action) == expected
    assert verdict.faulty_node == (
        "g7" if expected[1] == "restart_exclude_node" else verdict.faulty_node
    )


def test_rows_of_the_kernels_table_are_known_whatever_stands_before_them() -> None:
    """dmesg alone writes no name before its lines."""
    rows = [text.removeprefix("g7 kernel: ") for text in oom(2007, "python3")][2:4]
    assert all(tells_of_host_memory(row) for row in rows)
