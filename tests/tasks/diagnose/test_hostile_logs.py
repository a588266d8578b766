"""Lines that look like what programs print and are not: none ends a diagnosis, or makes it large or long."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from tasks.diagnose.accounting import Accounting
from tasks.diagnose.collectives import Collectives
from tasks.diagnose.compress import compress
from tasks.diagnose.diagnose import diagnose_files, diagnose_scan
from tasks.diagnose.dumped_stacks import DumpedStacks
from tasks.diagnose.fast import FastScan, ScanLimits
from tasks.diagnose.logs import LogLine, read_log, split_prefix
from tasks.diagnose.ras_reports import RasReports
from tasks.diagnose.rules import default_rules
from tasks.diagnose.scan import Scan
from tasks.diagnose.sources import blocks_of, source_of
from tasks.diagnose.topology import Topology
from tasks.diagnose.torchrun import TorchrunReader
from tasks.diagnose.verbatim import TracebackFolder, VerbatimStore

TRACEBACK = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'lr'\n"
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.mark.parametrize(
    "line",
    [
        "NODELIST=gpu[1-2-3]",
        "NODELIST=gpu[-,1-,--7,00000000000000000001]",
        "  exitcode  : abc (pid: 5)",
        "  rank      : \N{SUPERSCRIPT TWO} (local_rank: 0)",
        '{"a":' + "[" * 4000,
        '{"level": "error", "rank": -1, "message": "not joined yet"}',
        '{"level": "error", "rank": true, "message": "no number"}',
        "(Worker rank=99999999999, pid=1) hello",
        "a1 1: " * 682,
        "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}" * 6 + " ranks 0-3 on gn01",
        "\N{LATIN SMALL LETTER LONG S}econd attempt",
        '{"level": "error", "message": "cut in the middle of \\ud83d"}',
    ],
    ids=lambda line: ascii(line[:24]),
)
def test_a_line_of_an_odd_form_hides_no_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"{line}\n{TRACEBACK}")
    verdict = diagnose_files([path])
    assert (verdict.failure_class, verdict.root_cause_line) == ("KeyError", 4)
    assert verdict.faulty_rank is None
    assert 4 in {kept.number for kept in compress([path]).kept}


def test_a_chain_without_end_is_followed_to_its_first_link(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    later = TRACEBACK.replace("KeyError: 'lr'", "ValueError: again")
    path.write_text(DIRECT.join([TRACEBACK, *[later] * 3000]))
    verdict = diagnose_files([path])
    assert (verdict.failure_class, verdict.root_cause_line) == ("KeyError", 3)


def test_a_node_list_of_billions_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"NODELIST=n[{','.join(['1-999999999'] * 300)}]\n{TRACEBACK}")
    tracemalloc.start()
    verdict = diagnose_files([path])
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert verdict.failure_class == "KeyError"
    assert peak_bytes < 32 << 20


def test_a_loop_of_retries_ends_with_what_it_raises(tmp_path: Path) -> None:
    """A KeyError that is raised while another is handled is its own reason: the last one counts."""
    path = tmp_path / "job.log"
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    path.write_text(during.join([TRACEBACK] * 300))
    assert diagnose_files([path]).root_cause_line == 299 * 6 + 3


def test_a_loss_that_rises_for_long_and_comes_back_is_judged_in_one_pass(tmp_path: Path) -> None:
    """Minutes, when each loss is compared with all behind it."""
    path, loss = tmp_path / "job.log", 1.0
    with path.open("w") as file:
        for step in range(8000):
            file.write(f"step {step} loss: {loss:.6e}\n")
            loss *= 1.0 if step < 16 else 1.013
        file.write("step 8000 loss: 0.5\n")
    assert diagnose_files([path]).failure_class == "Unknown"


def test_errors_that_are_dealt_with_are_not_collected(tmp_path: Path) -> None:
    lines = (f"WARNING retrying after ConnectionError: {n} of many" for n in range(400))
    scan = Scan(default_rules()).read(
        LogLine("x.log", n, None, line, line) for n, line in enumerate(lines, start=1)
    )
    assert 0 < len(scan.asides) < 20


def test_numbers_that_can_be_no_rank_take_no_room(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    words = [a + b for a in "bdfgkl" for b in ("ank", "ort", "ist", "ump", "elf")]
    lines = (f"[rank999999]: {first} {second} failed" for first in words for second in words)
    path.write_text("\n".join(lines))
    compressed = compress([path])
    assert len(compressed.templates) == len(words) ** 2
    assert not any(template.ranks for template in compressed.templates)


def test_ranks_that_lines_feign_take_bounded_room(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    with open(path, "w") as file:
        for rank in range(3000):
            prefix = f"[rank{rank}]: "
            file.write(f"{prefix}step 1 loss: 2.0\n{prefix}Fatal Python error: Aborted\n")
            file.write("".join(f"{prefix}{line}\n" for line in TRACEBACK.splitlines()))
    scan = Scan(default_rules(), max_streams=200).read(read_log(path))
    tracked = (
        scan.streams,
        scan.ranks,
        scan.crashes,
        scan.progress.by_rank.last,
        scan.topology.by_rank,
    )
    assert max(map(len, tracked)) <= 201
    assert len(scan.kept) <= 201 * 8
    verdict = diagnose_scan(scan)
    assert (verdict.failure_class, verdict.root_cause_line) == ("KeyError", 5)
    told = "the logs name more than 200 ranks: 14,000 lines of further ones were read as"
    assert verdict.evidence[-1].startswith(told)


def test_each_file_has_room_for_a_rank_of_its_own() -> None:
    scan = Scan(default_rules(), max_streams=5)
    scan.read(LogLine(f"rank_{rank}.log", 1, rank, "hello", "hello") for rank in range(20))
    assert len(scan.ranks) == 20
    assert not scan.notes


def test_errors_take_bounded_room_and_a_rare_one_at_the_end_finds_some() -> None:
    scan = Scan(default_rules())
    scan.kept.max_in_all = 100
    errors = [f"[rank{rank}]: RuntimeError: CUDA error: device-side assert" for rank in range(500)]
    told = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO NODE FAILURE"
    scan.read(
        LogLine("x.log", number, *_prefix_first(line))
        for number, line in enumerate([*errors, told], start=1)
    )
    assert len(scan.kept) <= 108
    assert scan.notes == [f"{scan.kept.left_out:,} errors beyond {len(scan.kept):,} were left out"]
    assert 501 in {finding.line.number for finding in scan.findings}


def test_errors_that_were_survived_make_room() -> None:
    scan = Scan(default_rules())
    scan.kept.max_in_all = 20
    error = "[rank{}]: RuntimeError: CUDA error: device-side assert"
    texts = [error.format(rank) for rank in range(20)]
    texts += [f"step {step} loss: 2.0" for step in range(9)] + [error.format(99)]
    scan.read(LogLine("x.log", n, *_prefix_first(line)) for n, line in enumerate(texts, start=1))
    assert [finding.line.number for finding in scan.fatal("cause")] == [len(texts)]


def _prefix_first(text: str) -> tuple[int | None, str, str]:
    rank, body = split_prefix(text)
    return rank, text, body


def test_names_of_nodes_and_workers_take_bounded_room() -> None:
    topology, torchrun = Topology(), TorchrunReader()
    for number in range(20_500):
        told = f"rank {number} host n{number} pid {number} srun: error: m{number}: task 1: Killed"
        topology.feed(LogLine("x.log", number, None, told, told))
        died = f"failed (exitcode: 1) local_rank: 0 (pid: {number}) of binary: python"
        torchrun.feed(LogLine("x.log", number, None, died, died))
        closed = f"Sending process {number} closing signal SIGTERM"
        torchrun.feed(LogLine("x.log", number, None, closed, closed))
    tracked = (topology.hosts, topology.by_rank, topology.by_pid, topology.failed_tasks)
    assert max(map(len, tracked)) <= 20_000
    assert max(len(torchrun.failures), len(torchrun.ended_by_torchrun)) <= 20_000
    for text in (f"rank 3000000 host n1 pid {10**30}", f"rank 7 host {'n1' * 900}"):
        topology.feed(LogLine("x.log", 1, None, text, text))
    assert max(topology.by_rank) < 100_000
    assert max(map(len, topology.by_rank.values())) < 254


def test_addresses_that_a_host_feigns_take_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.diagnose.topology._MAX_PLACES", 100)
    topology = Topology()
    for at in range(250):
        text = f"gpu01:7:8 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.{at}<0>"
        topology.feed(LogLine("x.log", at, None, text, text))
    assert len(topology.by_address) == 100


def test_collectives_of_ranks_that_can_be_none_take_no_room() -> None:
    collectives = Collectives()
    named = ", ".join(str(10**9 + rank) for rank in range(50))
    for text in (
        f"missing ranks: [{named}]",
        "[Rank 12345678] WorkNCCL(SeqNum=4, OpType=ALLREDUCE)",
    ):
        collectives.feed(LogLine("x.log", 1, None, text, text))
    assert not collectives.named
    assert not collectives.waiting_in


def test_lists_of_nodes_that_slurm_feigns_take_bounded_room() -> None:
    accounting = Accounting()
    for number in range(400):
        for order, text in enumerate(
            (f"srun: error: n{number}-[1-99999]: task 0: Killed", "12|FAILED|a[1-9999] " * 200)
        ):
            accounting.feed(LogLine("x.log", number, None, text, text), order)
    assert len(accounting.hosts) < 22_000
    assert sum(len(row.nodes) for row in accounting.rows) < 300_000


def test_a_report_of_ras_without_end_takes_bounded_room() -> None:
    ras = RasReports()
    for number in range(1000, 2000):
        for text in (
            f"2 ranks have launched up to operation {number}",
            f"Rank {number} -- GPU 0 managed by process 1 on node n{number}",
            f"Process 1 on node m{number} managing GPU 0",
        ):
            ras.feed(LogLine("x.log", number, None, text, text), 0)
    assert max(len(held) for held in vars(ras).values() if hasattr(held, "__len__")) <= 64


def test_what_looks_like_a_stack_is_looked_at_in_one_pass() -> None:
    """A minute for this one line, when each beginning of a name is tried with each end of a file's."""
    text = f"{'a' * 2000} ({'.so' * 650}"
    started = time.monotonic()
    DumpedStacks().feed(LogLine("x.log", 1, None, f"{text} (", f"{text} ("))
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("chars", [10, 8000])
def test_tracebacks_that_many_ranks_begin_and_none_ends_take_bounded_room(chars: int) -> None:
    folder = TracebackFolder(VerbatimStore(max_lines=100, max_bytes=1 << 16), max_groups=5)
    text = "Traceback (most recent call last):" + "x" * chars
    for rank in range(6000):
        folder.feed((0, rank // 100), text.encode(), LogLine("x.log", rank, rank, text, text))
    assert 1000 < len(folder) <= 4096
    assert len(folder) * chars <= 16 << 20


def test_a_large_file_without_steps_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """It is never known that an error in it was survived: that holds no more of it in memory."""
    path = tmp_path / "job.log"
    dull = "".join(f"shard {number} was opened by a reader\n" for number in range(200_000))
    path.write_text("begin\n" * 50 + TRACEBACK + dull)
    limits = ScanLimits(block_bytes=1 << 16, waiting_blocks=4)
    source, scan = source_of(path), Scan(default_rules())
    tracemalloc.start()
    FastScan(scan, limits).read(source, blocks_of(source, limits.block_bytes))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < path.stat().st_size / 2
    assert diagnose_scan(scan).root_cause_line == 53
