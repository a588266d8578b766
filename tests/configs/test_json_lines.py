"""Event files: whole lines, whatever a full disk or a crash has cut off."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from configs.files import append_json_line, read_json_lines


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond: the kernel takes what fits, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def values(path: Path) -> list[dict[str, Any]]:
    return [value for value, _ in read_json_lines(path)]


def test_lines_are_read_as_they_were_appended(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for number in (1, 2):
        append_json_line(path, {"step": number, "text": "one\ntwo"})
    assert path.read_bytes().count(b"\n") == 2
    assert values(path) == [{"step": number, "text": "one\ntwo"} for number in (1, 2)]


def test_a_line_that_the_disk_takes_a_part_of_is_an_error_and_spoils_no_other(
    tmp_path: Path,
) -> None:
    path = tmp_path / "events.jsonl"
    append_json_line(path, {"step": 1})
    with largest_file(path.stat().st_size + 5), pytest.raises(OSError, match="too large"):
        append_json_line(path, {"step": 2})
    assert path.read_bytes() == b'{"step": 1}\n{"ste'
    append_json_line(path, {"step": 3})
    append_json_line(path, {"step": 4})
    assert values(path) == [{"step": 1}, {"step": 3}, {"step": 4}]


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        append_json_line(path, {"step": 1})


def test_a_line_that_lacks_only_its_newline_counts(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"step": 1}')
    append_json_line(path, {"step": 2})
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
