"""A job's files: shared between processes by size, counted and compressed in the pass that scans them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from configs.diagnose_schema import DiagnoseConfig
from tasks.diagnose import compress as compress_module
from tasks.diagnose import scan_files as scan_files_module
from tasks.diagnose.answer import Diagnosis, answer
from tasks.diagnose.bench_log import write_log
from tasks.diagnose.compress import Compressor, compress
from tasks.diagnose.diagnose import diagnose_scan
from tasks.diagnose.scan_files import scan_files, share_out
from tasks.diagnose.sources import Source, source_of

PACKERS = (gzip.compress, zstandard.ZstdCompressor().compress, lzma.compress, bz2.compress)
ERROR = "Traceback (most recent call last):\n  File 'a.py', line 1, in f\nKeyError: 'lr'\n"


def test_a_large_file_goes_to_a_process_of_its_own() -> None:
    shares = share_out([1] * 30 + [100] + [1] * 30, 2)
    read = [[at for run in share for at in run] for share in shares]
    assert [30] in read
    assert sorted(chain.from_iterable(read)) == list(range(61))


def test_files_of_rising_size_are_shared_evenly() -> None:
    """By number, the second half would take three times as long as the first."""
    sizes = list(range(1000))
    loads = [sum(sizes[at] for run in share for at in run) for share in share_out(sizes, 4)]
    assert max(loads) < 1.1 * sum(sizes) / 4


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 8))
def test_every_file_is_read_once_and_no_process_has_far_more_than_its_share(
    sizes: list[int], processes: int
) -> None:
    shares = share_out(sizes, processes)
    assert 1 <= len(shares) <= processes
    assert sorted(at for share in shares for run in share for at in run) == list(range(len(sizes)))
    assert 0 in shares[0][0]
    loads = [sum(sizes[at] for run in share for at in run) for share in shares]
    largest = max(max(sizes), -(-sum(sizes) // (4 * processes)))
    assert max(loads) <= sum(sizes) / processes + largest


def _job(folder: Path) -> list[Source]:
    """Files of very different sizes without times; the first error is neither in the first nor the largest."""
    folder.mkdir()
    steps = "".join(f"step {n} loss: 2.0\n" for n in range(2000))
    for rank in range(12):
        text = steps * (20 if rank == 7 else 1)
        text += {3: ERROR, 9: ERROR.replace("KeyError: 'lr'", "ValueError: later")}.get(rank, "")
        (folder / f"rank_{rank}.log").write_text(text)
    return [source_of(folder / f"rank_{rank}.log", f"rank_{rank}.log") for rank in range(12)]


def test_several_processes_come_to_the_same_verdict_and_count(tmp_path: Path) -> None:
    sources = _job(tmp_path / "logs")
    together, alone = scan_files(sources, processes=3), scan_files(sources)
    verdict = diagnose_scan(alone)
    assert (verdict.root_cause_file, verdict.failure_class) == ("rank_3.log", "KeyError")
    assert diagnose_scan(together) == verdict
    assert together.lines_read == alone.lines_read == 11 * 2000 + 40_000 + 6


@pytest.mark.parametrize("size_bytes", [300_000, 6_000_000])
def test_compression_beside_a_scan_is_what_it_is_alone(tmp_path: Path, size_bytes: int) -> None:
    sources = _job(tmp_path / "logs")
    write_log(tmp_path / "job.log", size_bytes)
    sources.append(source_of(tmp_path / "job.log"))
    compressor = Compressor()
    scan = scan_files(sources, compressor=compressor)
    beside, alone = compressor.result(), compress(sources)
    assert beside.kept == alone.kept
    assert scan.lines_read == beside.lines == alone.lines
    assert alone.lines == sum(s.path.read_bytes().count(b"\n") for s in sources if s.path)


def test_a_log_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def watch(module: object) -> None:
        blocks_of = scan_files_module.blocks_of
        monkeypatch.setattr(
            module, "blocks_of", lambda s, *a, **k: (read.append(s.name), blocks_of(s, *a, **k))[1]
        )

    watch(compress_module)
    watch(scan_files_module)
    path = tmp_path / "job.log"
    path.write_text(ERROR)
    (found,) = answer([str(path)], DiagnoseConfig(store=tmp_path / "store"))
    assert isinstance(found, Diagnosis)
    assert (found.lines, found.kept_lines) == (3, 3)
    assert read == [str(path)]


@pytest.mark.parametrize("pack", PACKERS)
def test_a_log_that_is_cut_off_is_diagnosed_as_far_as_it_goes(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    rng = random.Random(1)
    text = "step 1\n" + ERROR + "\n".join(f"{i} {rng.random()}" for i in range(50_000))
    whole, path = pack(text.encode()), tmp_path / "job.log.packed"
    settings = DiagnoseConfig(store=tmp_path / "store")
    for packed, told in ((whole, False), (whole[: len(whole) * 9 // 10], True)):
        path.write_bytes(packed)
        (found,) = answer([str(path)], settings)
        assert isinstance(found, Diagnosis)
        assert (found.failure_class, found.root_cause_line) == ("KeyError", 4)
        said = f"{path} is cut off: what it holds was read"
        assert (said in found.evidence) == told
        assert (found.lines < text.count("\n")) == told
