"""Folders and storage that are well, read-only, full, or not there; and nothing is left in them."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.doctor import storage
from infra.doctor.findings import Status
from tests.tasks.train.s3_server import BUCKET, S3Server

STOP = threading.Event()


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount file systems")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_folder_that_is_well_or_can_be_made(tmp_path: Path) -> None:
    found = storage.check_folder(STOP, tmp_path / "runs" / "run")
    assert found.status in (Status.OK, Status.WARNING)
    assert f"{tmp_path}: atomic rename, fsync, append and locks work" in found.sentence
    assert list(tmp_path.iterdir()) == []
    assert storage.check_room(STOP, tmp_path / "runs" / "run", None).status is Status.OK


def test_a_full_one(tmpfs: Path) -> None:
    assert storage.check_folder(STOP, tmpfs).status is Status.WARNING  # gone with the machine
    filler = os.open(tmpfs / "filler", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space left"):
        while os.write(filler, bytes(4096)):
            pass
    os.close(filler)
    found = storage.check_folder(STOP, tmpfs)
    assert (found.status, "No space left on device" in found.sentence) == (Status.FAILED, True)
    assert [path.name for path in tmpfs.iterdir()] == ["filler"]
    assert storage.check_room(STOP, tmpfs, None).status is Status.FAILED


def test_one_that_cannot_be_written(tmpfs: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(tmpfs)], check=True)
    found = storage.check_folder(STOP, tmpfs / "run")
    assert (found.status, "Read-only file system" in found.sentence) == (Status.FAILED, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_one_of_somebody_else() -> None:
    found = storage.check_folder(STOP, Path("/") / "run")
    assert (found.status, "Permission denied" in found.sentence) == (Status.FAILED, True)


def test_one_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = storage.check_folder(STOP, tmp_path / "file")
    assert (found.status, "is not a folder" in found.sentence) == (Status.FAILED, True)


def test_room_for_checkpoints(tmp_path: Path) -> None:
    few = storage.judge_room(tmp_path, 10 << 30, 20 << 30)
    assert (few.status, "a checkpoint of this run takes 20 GiB" in few.sentence) == (
        Status.FAILED,
        True,
    )
    assert storage.judge_room(tmp_path, 50 << 30, 20 << 30).status is Status.WARNING
    assert storage.judge_room(tmp_path, 90 << 30, 20 << 30).status is Status.OK


# --- checkpoint storage ---------------------------------------------------------------------------


def test_storage_in_a_folder(tmp_path: Path) -> None:
    found = storage.check_checkpoint_storage(STOP, f"file://{tmp_path}/a/b")
    assert (found.status, list(tmp_path.iterdir())) == (Status.OK, [])


@pytest.mark.slow
def test_storage_in_s3(s3: S3Server) -> None:
    url = f"s3://{BUCKET}/runs"
    assert storage.check_checkpoint_storage(STOP, url).status is Status.OK
    assert s3.stored_keys() == []
    found = storage.check_checkpoint_storage(STOP, "s3://no-such-bucket/runs")
    assert (found.status, "cannot be written" in found.sentence) == (Status.FAILED, True)


def test_storage_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{free.getsockname()[1]}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    found = storage.check_checkpoint_storage(STOP, "s3://bucket/runs")
    assert (found.status, "cannot be written" in found.sentence) == (Status.FAILED, True)
    found = storage.check_checkpoint_storage(STOP, "nosuch://bucket/runs")
    assert found.status is Status.FAILED
