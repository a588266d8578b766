"""Large logs are not looked at line by line: what a line far from the end says of hosts and ranks is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.records import Verdict
from tasks.diagnose.diagnose import diagnose_scan
from tasks.diagnose.fast import FastScan, ScanLimits
from tasks.diagnose.logs import read_log
from tasks.diagnose.rules import default_rules
from tasks.diagnose.scan import Scan
from tasks.diagnose.sources import blocks_of, source_of

LIMITS = ScanLimits(block_bytes=1 << 15, head_lines=4, tail_lines=40, steps=60)
BOOT = "".join(f"boot phase {letter} ok\n" for letter in "abcdefghijklmnop")
PEER = "NCCL WARN Connection closed by remote peer 10.0.0.5<4242>\n"
TIMED_OUT = (
    "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"
)


def steps(label: str = "", count: int = 60, ranks: int = 16) -> str:
    return "".join(
        f"{label.format(rank=rank, host=rank // 4)}step {step} loss 1.0\n"
        for step in range(1, count)
        for rank in range(ranks)
    )


def scans(path: Path, text: str) -> tuple[Scan, Scan]:
    """By what can matter, and line by line."""
    path.write_text(text)
    fast, source = Scan(default_rules()), source_of(path, path.name)
    FastScan(fast, LIMITS).read(source, blocks_of(source, LIMITS.block_bytes))
    return fast, Scan(default_rules()).read(read_log(path))


def verdict_on(path: Path, text: str) -> Verdict:
    fast, by_line = map(diagnose_scan, scans(path, text))
    assert fast == by_line
    return fast


def test_who_hangs_is_known_where_ranks_only_report_steps(tmp_path: Path) -> None:
    frames = "".join(f"frame #{n}: c10d::watchdogHandler() + 0x{n}a0\n" for n in range(30))
    told = "".join(TIMED_OUT.format(rank=rank) + frames for rank in range(16) if rank != 9)
    verdict = verdict_on(tmp_path / "job.log", BOOT + steps("[rank{rank}]: ") + told)
    assert (verdict.failure_class, verdict.faulty_rank) == ("NCCLTimeoutError", 9)


def test_a_rank_that_is_a_step_behind_is_known(tmp_path: Path) -> None:
    reports = steps("[rank{rank}]: ").replace("[rank9]: step 59 loss 1.0\n", "")
    waits = "[rank0]: waiting\n" * 200 + "job 12 state=RUNNING last output 2 h ago\n"
    verdict = verdict_on(tmp_path / "job.log", BOOT + reports + waits)
    assert (verdict.failure_class, verdict.faulty_rank) == ("Hang", 9)


def test_ranks_that_report_in_words_of_their_own_are_known(tmp_path: Path) -> None:
    reports = "".join(
        f"step {step} rank={rank} loss 1.0\n" for step in range(1, 20) for rank in range(64)
    )
    fast, by_line = scans(tmp_path / "job.log", reports + "waiting\n" * 100)
    assert (
        fast.progress.by_rank.last == by_line.progress.by_rank.last == dict.fromkeys(range(64), 19)
    )


@pytest.mark.parametrize(
    ("hello", "label"),
    [
        ("{rank}: hello from gpu{host:02d}", "{rank}: "),
        ("gpu{host:02d} {rank:2d}: hello there", "{rank}: "),
        ("boot is done", "gpu{host:02d} {rank:2d}: "),
    ],
)
def test_a_rank_is_placed_by_lines_that_its_label_stands_before(
    tmp_path: Path, hello: str, label: str
) -> None:
    told = "".join(f"{hello}\n".format(rank=rank, host=rank // 4) for rank in range(16))
    text = BOOT + told + steps(label) + "9: CUDA error: uncorrectable ECC error encountered\n"
    assert verdict_on(tmp_path / "job.log", text).faulty_node == "gpu02"


@pytest.mark.parametrize(
    "wording", ["connected to gpu0{n} 10.0.0.{n}", "master endpoint gpu0{n}=10.0.0.{n}"]
)
def test_addresses_of_hosts_are_known_in_any_words(tmp_path: Path, wording: str) -> None:
    told = "".join(f"{wording}\n".format(n=n) for n in range(1, 9))
    verdict = verdict_on(tmp_path / "job.log", BOOT + told + steps() + PEER)
    assert (verdict.faulty_node, verdict.action) == ("gpu05", "restart_exclude_node")


def test_a_rank_that_is_named_as_missing_long_before_the_end_is_known(tmp_path: Path) -> None:
    missing = "analysis: rank 5 has not joined the collective\n" + "all wait\n" * 200
    told = "".join(f"[rank{rank}]: {TIMED_OUT.format(rank=rank)}" for rank in range(3))
    verdict = verdict_on(tmp_path / "job.log", BOOT + steps() + missing + told)
    assert verdict.faulty_rank == 5


def test_greetings_are_looked_at_in_bounded_number(tmp_path: Path) -> None:
    limits = ScanLimits(block_bytes=4096, greetings=50, greetings_in_all=70)
    scan, counts = Scan(default_rules()), []
    fast = FastScan(scan, limits)
    for name in ("a.log", "b.log", "c.log"):
        path = tmp_path / name
        path.write_text("".join(f"{n % 9}: loaded shard-{n} from gpu07\n" for n in range(4000)))
        before, source = scan.order, source_of(path, name)
        fast.read(source, blocks_of(source, limits.block_bytes))
        counts.append(scan.order - before)
    head = limits.head_lines  # looked at whatever they are
    assert [count - counts[-1] for count in counts] == [50 - head, 20 - head, 0]


_NCCL_START = (
    "gpu-{host:02d}:71{rank}:71{rank} [0] NCCL INFO comm 0x7f{rank:02d} rank {rank} nranks 16 cudaDev 0 - Init COMPLETE\n"
    + "gpu-{host:02d}:71{rank}:71{rank} [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"
    * 50
)


def test_of_nccls_own_lines_a_rank_alone_needs_one_of_each_wording(tmp_path: Path) -> None:
    told = BOOT + _NCCL_START.format(rank=9, host=2)
    scan, by_line = scans(tmp_path / "rank_9.log", told + steps("", 200, 1) + "done\n" * 50)
    assert scan.topology.by_rank == by_line.topology.by_rank == {9: "gpu-02"}
    others = scan.order - scan.progress.steps_seen
    assert others < 80, "a hundred when every line about a channel is looked at"


def test_of_nccls_own_lines_many_ranks_need_each(tmp_path: Path) -> None:
    told = "".join(_NCCL_START.format(rank=rank, host=rank // 4) for rank in range(16))
    scan, by_line = scans(tmp_path / "job.log", BOOT + told + steps() + "done\n" * 50)
    assert scan.topology.by_rank == by_line.topology.by_rank
    assert scan.topology.by_rank == {rank: f"gpu-{rank // 4:02d}" for rank in range(16)}
