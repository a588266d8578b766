"""Where logs come from: compressed files, pipes, growing files, streams of one and of many ranks."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from configs.errors import InputError
from tasks.diagnose.bench_log import write_log
from tasks.diagnose.binary import is_binary
from tasks.diagnose.blocks import Block, LineSplitter
from tasks.diagnose.logs import lines_of, read_log
from tasks.diagnose.scan_files import size_bytes
from tasks.diagnose.sources import Source, Tail, rank_of_file, source_of
from tasks.diagnose.times import time_of

TEXT = "one\ntwo\x1b[31m red\x1b[0m\n 10%|#\r 20%|##\rKeyError: 1\nfour"


def _texts(path: Path) -> list[tuple[int, str]]:
    return [(line.number, line.text) for line in read_log(path)]


EXPECTED = [
    (1, "one"),
    (2, "two red"),
    (3, " 10%|#"),
    (3, " 20%|##"),
    (3, "KeyError: 1"),
    (4, "four"),
]


PACKERS = (gzip.compress, zstandard.ZstdCompressor().compress, lzma.compress, bz2.compress)


@pytest.mark.parametrize("pack", [bytes, *PACKERS])
def test_compressed_files_are_read_like_plain_ones(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(pack(TEXT.encode()))
    assert _texts(path) == EXPECTED


def test_a_packed_log_is_as_large_as_what_it_holds(tmp_path: Path) -> None:
    """By its size on disk, it would be read as slowly as a small one."""
    plain, packed = tmp_path / "a.log", tmp_path / "b.log.gz"
    write_log(plain, 2_000_000)
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    sizes = [size_bytes([source_of(path)]) for path in (plain, packed)]
    assert sizes[1] > sizes[0] > packed.stat().st_size


def test_files_of_several_members_are_read_to_their_end(tmp_path: Path) -> None:
    halves = [b"first\n", b"second\n"]
    for pack in PACKERS:
        path = tmp_path / "a.log"
        path.write_bytes(b"".join(pack(half) for half in halves))
        assert _texts(path) == [(1, "first"), (2, "second")]


def test_a_cut_off_archive_gives_what_it_holds(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = [f"{i} {rng.random()}" for i in range(50_000)]
    for pack in PACKERS:
        whole = pack("\n".join(lines).encode())
        path = tmp_path / "a.log"
        path.write_bytes(whole[: len(whole) * 9 // 10])  # bzip2 gives whole blocks only
        found = [text for _, text in _texts(path)]
        assert len(found) > 10_000
        assert found[:-1] == lines[: len(found) - 1]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_a_damaged_archive_is_an_error(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    rng = random.Random(1)
    whole = bytearray(pack("\n".join(str(rng.random()) for _ in range(50_000)).encode()))
    whole[len(whole) // 2 : len(whole) // 2 + 64] = b"\xff" * 64
    path = tmp_path / "a.log"
    path.write_bytes(whole)
    with pytest.raises(InputError, match="damaged"):
        _texts(path)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\x1f", b"\x28\xb5"])
def test_tiny_files_are_no_trouble(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(content)
    assert all(number == 1 for number, _ in _texts(path))


def test_binary_data_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(random.Random(2).randbytes(2 << 20))
    lines = list(read_log(path))
    assert lines
    assert all(len(line.text) <= 4096 for line in lines)


@pytest.mark.parametrize(
    ("content", "binary"),
    [
        (Path(sys.executable).read_bytes()[:200_000], True),
        (gzip.compress(Path(sys.executable).read_bytes()[:200_000]), True),
        ("step 1\n".encode("utf-16-le") * 50, True),
        (b"step 1\n" * 500 + b"\0" * 20 + b"\0\0step 2\n" * 9, False),
        (b"\0" * 100_000 + b"step 1\n" * 100, False),
        (b"step 1\n" * 50 + b"\0" * 5000 + b"step 2\n" * 50, False),
        (b"\0", False),
        (b"", False),
        (gzip.compress(b"step 1\n" * 50)[:30], False),
        (random.Random(2).randbytes(10_000), True),
        (b"\x89PNG\r\n\x1a\nIHDR", True),
        (b"\x7fELF\x02\x01\x01 core of python", True),
        (b"\0" * 100_000, True),
        (("step 1\n" * 50).encode("utf-16"), False),
        ("Schritt 1 für Gerät 3: 10 °C\n".encode("latin-1") * 50, False),
        ("шаг один: потеря 2.0\n".encode("cp1251") * 50, False),
        (b"\x1b[31mstep\x1b[0m 1\b\b\b\b\rstep 2\n" * 50, False),
        (b"step 1\n" * 200 + random.Random(2).randbytes(200), False),
    ],
    ids=[
        "program",
        "packed program",
        "utf-16 without a mark",
        "stray",
        "cut",
        "hole",
        "zero",
        "empty",
        "cut off",
        "random",
        "picture",
        "core dump",
        "zeros alone",
        "utf-16 that says so",
        "latin-1",
        "cyrillic",
        "colours and bars",
        "broken bytes in a log",
    ],
)
def test_a_sample_tells_binary_files_from_text(
    tmp_path: Path, content: bytes, binary: bool
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(content)
    assert is_binary(path) == binary


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_that_says_so_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.log"
    text = "".join(f"Gerät {number}\n" for number in range(40_000))
    path.write_bytes(("\ufeff" + text).encode(encoding))
    assert [text for _, text in _texts(path)] == text.splitlines()


def test_a_line_of_ten_megabytes_keeps_its_start_and_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"start " + b"x" * (10 << 20) + b" RuntimeError: at the end\nnext\n")
    tracemalloc.start()
    lines = list(read_log(path))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [line.number for line in lines] == [1, 2]
    assert lines[0].text.startswith("start ")
    assert lines[0].text.endswith("RuntimeError: at the end")
    assert peak_bytes < 4 << 20


def test_standard_input_is_read_as_it_comes() -> None:
    code = "from tasks.diagnose.sources import *; from tasks.diagnose.logs import lines_of\n"
    code += "s = source_of('-')\nfor line in lines_of(blocks_of(s), s): print(line.quote)"
    for content in (TEXT.encode(), gzip.compress(TEXT.encode())):
        done = subprocess.run(
            [sys.executable, "-c", code], input=content, capture_output=True, check=True
        )
        assert done.stdout.decode().splitlines()[-2:] == ["-:3: KeyError: 1", "-:4: four"]


def test_a_pipe_that_gives_single_bytes_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code = "import sys, time\nwith open(sys.argv[1], 'wb', buffering=0) as f:\n"
    code += "  for c in b'ab\\ncd\\n': f.write(bytes([c])); time.sleep(0.01)"
    with subprocess.Popen([sys.executable, "-c", code, str(pipe)]):
        assert _texts(pipe) == [(1, "ab"), (2, "cd")]


def test_blocks_may_end_anywhere() -> None:
    data = b"a\r\nb\rc\n\n\x1b[1md\r\r\ne"
    source = Source(None, "x")
    whole = [(line.number, line.text) for line in lines_of(_push([data]), source)]
    assert whole == [(1, "a"), (2, "b"), (2, "c"), (4, "d"), (5, "e")]
    for cut in range(1, len(data)):
        halves = _push([data[:cut], data[cut:]])
        assert [(line.number, line.text) for line in lines_of(halves, source)] == whole, cut


def _push(parts: list[bytes]) -> list[Block]:
    splitter = LineSplitter()
    blocks = [splitter.push(part) for part in parts] + [splitter.finish()]
    return [block for block in blocks if block is not None]


def test_a_growing_file_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "rank_3.log"
    tail = Tail(source_of(path))
    assert list(tail.read()) == []
    seen: list[tuple[int, str, int | None]] = []

    def look() -> None:
        found = lines_of(tail.read(), tail.source)
        seen.extend((line.number, line.text, line.rank) for line in found)

    for part in ("first li", "ne\nsecond\nthi", "rd"):
        with open(path, "a") as file:
            file.write(part)
        look()
    assert seen == [(1, "first line", 3), (2, "second", 3)]
    rest = tail.finish()
    assert rest is not None
    assert rest.pieces() == [b"third"]


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_is_replaced_or_cut_is_read_again(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "a.log"
    path.write_text("old one\nold two\n")
    tail = Tail(source_of(path))
    list(tail.read())
    if replaced:
        path.rename(tmp_path / "a.log.1")
    path.write_text("new\n")
    lines = list(lines_of(tail.read(), tail.source))
    assert [(line.number, line.text) for line in lines] == [(1, "new")]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank_00012.log", 12),
        ("job.rank3.out", 3),
        ("global_rank-7.err", 7),
        ("attempt_0/5/stderr.log", 5),
        ("local_rank_1.log", None),
        ("franked1.log", None),
        ("slurm-123.out", None),
    ],
)
def test_the_rank_by_the_name_of_the_file(name: str, rank: int | None) -> None:
    assert rank_of_file(Path("logs") / name) == rank


@pytest.mark.parametrize(
    ("text", "stamp"),
    [
        ("2025-04-19 13:13:45,250 INFO x", 1745068425.25),
        ("[2025-04-19T13:13:45Z] x", 1745068425.0),
        ("[rank3]: 2025-04-19T15:13:45+02:00 x", 1745068425.0),
        ("04/19/2025 13:13:45 - INFO - x", 1745068425.0),
        ("Sat Apr 19 13:13:45 UTC 2025", 1745068425.0),
        ("[E419 13:13:45.500000000 ProcessGroupNCCL.cpp:616] x", 1745068425.5),
        ("W0419 13:13:45.500000 123 torch/run.py:1] x", 1745068425.5),
        ("Apr 19 13:13:45 n1 kernel: x", 1745068425.0),
        ("2025-99-19 13:13:45 x", None),
        ("13:13:45 x", None),
        ("no stamp", None),
    ],
)
def test_stamps_of_programs_are_read(text: str, stamp: float | None) -> None:
    assert time_of(text, year=2025) == stamp


@pytest.mark.parametrize("pack", PACKERS)
def test_a_packed_log_that_is_cut_off_anywhere_is_read_as_far_as_it_goes(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    lines = [f"step {number} loss {number / 7}" for number in range(60)]
    whole = pack("\n".join(lines).encode())
    path = tmp_path / "a.log.packed"
    for size in range(1, len(whole), 7):
        path.write_bytes(whole[:size])
        read = [text for _, text in _texts(path)]
        if size > 6:  # as far as it can be known to be packed
            assert read[:-1] == lines[: max(0, len(read) - 1)]


def test_a_gzip_without_its_trailer_loses_no_line(tmp_path: Path) -> None:
    generator = random.Random(5)
    lines = [f"step {number} {generator.random()}" for number in range(20_000)]
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress("\n".join([*lines, "KeyError: 1"]).encode())[:-2])
    assert len(_texts(path)) == len(lines) + 1


def test_padding_after_a_gzip_is_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"one\n") + b"\0" * 5000 + gzip.compress(b"two\n") + b"\0")
    assert [text for _, text in _texts(path)] == ["one", "two"]


def test_damage_at_the_beginning_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"one two three")[:10] + b"\xff" * 400)  # no such kind of block
    with pytest.raises(InputError, match=r"a\.log\.gz: the compressed log is damaged"):
        _texts(path)
    assert not is_binary(path)
