"""A full disk is named: which file, how much it needs, how much is free."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from configs import full_disk as module
from configs.files import write_text
from configs.full_disk import full_disk, with_room_note


def refuse(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_does_not_fit_is_named_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", refuse)
    path = tmp_path / "plan.json"
    with pytest.raises(OSError, match="No space left") as caught:
        write_text(path, "x" * (3 << 20))
    assert caught.value.errno == errno.ENOSPC
    sentence = full_disk(caught.value)
    assert sentence is not None
    assert f"{path} cannot be written: No space left on device, 3.0 MiB are needed" in sentence
    assert "free there" in sentence
    assert list(tmp_path.iterdir()) == []


def test_the_cause_of_a_librarys_error_is_found() -> None:
    """A real one: what is written to /dev/full does not fit."""
    try:
        try:
            with open("/dev/full", "w") as file:
                file.write("x")
        except OSError as error:
            raise RuntimeError("a data set cannot be generated") from error
    except RuntimeError as error:
        sentence = full_disk(error)
    assert sentence is not None
    assert sentence.startswith("a disk is full (No space left on device)")


def test_other_errors_are_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert full_disk(None) is None
    assert full_disk(FileNotFoundError(errno.ENOENT, "no such file")) is None
    assert with_room_note("killed", tmp_path) == "killed"


def test_who_could_not_say_why_is_spoken_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=5000)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: full)
    said = with_room_note("no output", tmp_path / "gone" / "job")
    assert said.startswith(f"the disk with {tmp_path}/gone/job is full, 5 KiB are free: free some")
    assert said.endswith("(said last: no output)")
    told = "x cannot be written: No space left on device"
    assert with_room_note(told, tmp_path) == told
