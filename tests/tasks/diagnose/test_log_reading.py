"""Reading logs: line numbers, progress bars, colours, broken bytes, huge lines, prefixes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from tasks.diagnose.logs import MAX_TEXT_CHARS, attempt_log_files, read_log, split_prefix


def _read(path: Path, content: bytes) -> list[tuple[int, str]]:
    path.write_bytes(content)
    return [(line.number, line.text) for line in read_log(path)]


def test_numbers_count_newlines_and_blank_lines_are_left_out(tmp_path: Path) -> None:
    assert _read(tmp_path / "a.log", b"one\n\n  \nfour\r\nfive") == [
        (1, "one"),
        (4, "four"),
        (5, "five"),
    ]


def test_an_error_behind_a_progress_bar_is_its_own_line(tmp_path: Path) -> None:
    content = b" 10%|#  |\r 20%|## |\rRuntimeError: boom\nnext\n"
    assert _read(tmp_path / "a.log", content)[-2:] == [(1, "RuntimeError: boom"), (2, "next")]


def test_colours_control_characters_and_broken_utf8_do_not_hide_text(tmp_path: Path) -> None:
    content = b"\x1b[31;1mValueError\x1b[0m: \xff\xfe caf\xc3\xa9 \x1b]0;title\x07\x00end\n"
    ((number, text),) = _read(tmp_path / "a.log", content)
    assert number == 1
    assert text == "ValueError: \ufffd\ufffd caf\xe9 end"


def test_a_huge_line_is_cut_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with open(path, "wb") as file:
        for _ in range(64):
            file.write(b"x" * (1 << 20))
        file.write(b"\nafter\n")
    tracemalloc.start()
    lines = list(read_log(path))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(line.text) for line in lines] == [MAX_TEXT_CHARS * 3 // 4, 5]
    assert (lines[1].number, lines[1].text) == (2, "after")
    assert peak_bytes < 4 << 20


def test_lines_across_block_borders_are_whole(tmp_path: Path) -> None:
    rows = [f"row {i} " + "y" * (i % 97) for i in range(4000)]
    assert [text for _, text in _read(tmp_path / "a.log", "\n".join(rows).encode())] == rows


@pytest.mark.parametrize(
    ("text", "rank", "body"),
    [
        ("[rank12]: KeyError: 1", 12, "KeyError: 1"),
        ("[rank3]:[E419 ProcessGroupNCCL.cpp:616] x", 3, "[E419 ProcessGroupNCCL.cpp:616] x"),
        ("[default5]:RuntimeError: x", 5, "RuntimeError: x"),
        ("7: Traceback (most recent call last):", 7, "Traceback (most recent call last):"),
        ("[1,4]<stderr>:boom", 4, "boom"),
        ("(host-3, rank=3, pid=35, ip=10.0.0.1) [rank7]: oops", 7, "oops"),
        ("(Worker pid=35, ip=10.0.0.1) oops", None, "oops"),
        ("[2025-01-01 00:00:00] plain", None, "[2025-01-01 00:00:00] plain"),
    ],
)
def test_prefixes_of_launchers_come_off(text: str, rank: int | None, body: str) -> None:
    assert split_prefix(text) == (rank, body)


def test_a_rank_log_names_its_rank_and_the_launcher_comes_last(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for name in ("rank_00001.log", "rank_00000.log", "rank_x.log", "job/launcher.log"):
        (tmp_path / name).write_text("hello\n")
    files = attempt_log_files(tmp_path)
    assert [f.name for f in files] == ["rank_00000.log", "rank_00001.log", "launcher.log"]
    assert [line.rank for f in files for line in read_log(f)] == [0, 1, None]
