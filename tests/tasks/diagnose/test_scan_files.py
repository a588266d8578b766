"""A job's files: shared between processes by size, counted and compressed in the pass that scans them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
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
from tasks.diagnose.scan_files import _take, runs_of, scan_files
from tasks.diagnose.sources import Source, source_of

PACKERS = (gzip.compress, zstandard.ZstdCompressor().compress, lzma.compress, bz2.compress)
ERROR = "Traceback (most recent call last):\n  File 'a.py', line 1, in f\nKeyError: 'lr'\n"


def test_a_large_file_is_a_run_of_its_own() -> None:
    runs = runs_of([1] * 30 + [100] + [1] * 30, 2)
    assert range(30, 31) in runs
    assert list(chain.from_iterable(runs)) == list(range(61))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 8))
def test_every_file_is_in_one_run_and_none_is_far_larger_than_the_others(
    sizes: list[int], processes: int
) -> None:
    runs = runs_of(sizes, processes)
    assert list(chain.from_iterable(runs)) == list(range(len(sizes)))
    most = -(-sum(sizes) // (8 * processes))
    assert all(len(run) == 1 or sum(sizes[at] for at in run) <= most for run in runs)


def _job(folder: Path) -> list[Source]:
    """Files of very different sizes without times; the first error is neither in the first nor the largest."""
    folder.mkdir()
    steps = "".join(f"step {n} loss: 2.0\n" for n in range(2000))
    for rank in range(12):
        text = steps * (20 if rank == 7 else 1)
        text += {3: ERROR, 9: ERROR.replace("KeyError: 'lr'", "ValueError: later")}.get(rank, "")
        (folder / f"rank_{rank}.log").write_text(text)
    return [source_of(folder / f"rank_{rank}.log", f"rank_{rank}.log") for rank in range(12)]


def _die(*_: object) -> None:
    _take(scan_files_module._taken)  # what it has taken, nobody else reads
    os._exit(1)


def test_what_a_process_that_dies_would_have_read_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = _job(tmp_path / "logs")
    whole = scan_files(sources, processes=1)
    monkeypatch.setattr(scan_files_module, "_read_taken", _die)
    scan = scan_files(sources, processes=2)
    assert scan.lines_read == whole.lines_read
    assert diagnose_scan(scan) == diagnose_scan(whole)


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
