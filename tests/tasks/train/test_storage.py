"""Storage of checkpoint files: in a folder, and on a real S3 server with real faults."""

from __future__ import annotations

import hashlib
import random
from contextlib import suppress
from pathlib import Path

import pytest
from s3_server import BUCKET, S3Server

from configs.errors import CheckpointError, ConfigError
from configs.records import FileRecord
from tasks.train import storage as storage_module
from tasks.train.patience import Patience
from tasks.train.storage import LocalStorage, check_access, checkpoint_url, open_storage
from tasks.train.storage_base import Storage, without_credentials
from tasks.train.storage_remote import RemoteStorage

URL = f"s3://{BUCKET}/runs/step_00000200-001"
PREFIX = "runs/step_00000200-001"
QUICK = Patience(
    connect_timeout_s=2.0,
    read_timeout_s=1.0,
    request_attempts=2,
    request_timeout_s=2.5,
    attempts=3,
    backoff_s=0.05,
    call_timeout_s=30.0,
)
MIB = 1 << 20


@pytest.fixture(params=["folder", "file", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """One of each kind."""
    if request.param == "folder":
        return open_storage(None, tmp_path / "step_00000200")
    if request.param == "file":
        return open_storage(f"file://{tmp_path}/stored/step_00000200", tmp_path)
    if request.param == "memory":
        return open_storage(f"memory://{tmp_path.name}/step_00000200", tmp_path)
    request.getfixturevalue("s3")
    return open_storage(URL, tmp_path)


def remote(part_bytes: int = 5 * MIB) -> RemoteStorage:
    return RemoteStorage(URL, QUICK, part_bytes=part_bytes)


def record_of(content: bytes) -> FileRecord:
    return FileRecord(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def put(storage: Storage, name: str, content: bytes) -> None:
    with storage.write(name) as file:
        for start in range(0, len(content), MIB):
            file.write(content[start : start + MIB])


def readable(storage: Storage, *names: str) -> list[str]:
    found = []
    for name in names:
        with suppress(CheckpointError):
            storage.read_bytes(name)
            found.append(name)
    return found


# --- any kind -------------------------------------------------------------------------------------


def test_what_is_written_is_read(storage: Storage, tmp_path: Path) -> None:
    content = random.Random(1).randbytes(3 * MIB)
    put(storage, "__0_0.distcp", content)
    put(storage, "empty", b"")
    assert storage.read_bytes("__0_0.distcp") == content
    assert storage.read_bytes("empty") == b""
    storage.download("__0_0.distcp", tmp_path / "copy", record_of(content))
    assert (tmp_path / "copy").read_bytes() == content
    put(storage, "empty", b"no more")
    assert storage.read_bytes("empty") == b"no more"


def test_a_file_is_absent_when_its_writer_fails(storage: Storage) -> None:
    with pytest.raises(ZeroDivisionError), storage.write("__0_0.distcp") as file:
        file.write(b"x" * MIB)
        raise ZeroDivisionError
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp could not be read: "):
        storage.read_bytes("__0_0.distcp")


def test_files_and_all_files_are_removed(storage: Storage) -> None:
    for name in ("a", "b", "c"):
        put(storage, name, b"content")
    storage.remove("b")
    storage.remove("was never there")
    assert readable(storage, "a", "b", "c") == ["a", "c"]
    storage.remove_all()
    storage.remove_all()
    assert readable(storage, "a", "b", "c") == []


def test_names_do_not_lead_out_of_the_folder(storage: Storage, tmp_path: Path) -> None:
    for name in ("../x", "/etc/passwd", "..", "", "a/b"):
        with pytest.raises(CheckpointError, match="is no name of a checkpoint's file"):
            storage.read_bytes(name)
        with pytest.raises(CheckpointError), storage.write(name):
            pass


def test_another_content_is_refused_and_leaves_nothing(storage: Storage, tmp_path: Path) -> None:
    put(storage, "common.pt", b"content")
    target = tmp_path / "copies"
    target.mkdir()
    wrong = FileRecord(size_bytes=7, sha256="0" * 64)
    with pytest.raises(CheckpointError, match=r"common\.pt is corrupt: its SHA-256"):
        storage.download("common.pt", target / "common.pt", wrong)
    assert list(target.iterdir()) == []


# --- a folder -------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CheckpointError, match=r"file/x could not be written: \[Errno"),
        LocalStorage(tmp_path / "file").write("x") as file,
    ):
        file.write(b"")


def test_local_storage_needs_no_fsspec() -> None:
    import subprocess
    import sys

    code = (
        "import sys, pathlib, tasks.train.storage as s; s.open_storage(None, pathlib.Path('x'));"
        "sys.exit('fsspec' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- S3 -------------------------------------------------------------------------------------------


def test_a_large_file_is_uploaded_in_parts_and_whole(s3: S3Server, tmp_path: Path) -> None:
    content = random.Random(2).randbytes(17 * MIB + 3)
    put(remote(), "__0_0.distcp", content)
    parts = [request for request in s3.requests if "partNumber=" in request]
    assert len(parts) == 4
    assert s3.stored_keys() == [f"{PREFIX}/__0_0.distcp"]
    remote().download("__0_0.distcp", tmp_path / "copy", record_of(content))
    assert (tmp_path / "copy").read_bytes() == content


def test_one_large_piece_is_uploaded_in_parts_too(s3: S3Server) -> None:
    content = random.Random(2).randbytes(17 * MIB)
    storage = remote()
    with storage.write("__0_0.distcp") as file:
        assert file.write(memoryview(content)) == len(content)
    assert len([request for request in s3.requests if "partNumber=" in request]) >= 3
    assert storage.read_bytes("__0_0.distcp") == content


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["503", "hang", "reset"])
@pytest.mark.parametrize(
    ("method", "query"),
    [("POST", "uploads"), ("PUT", "partNumber=2"), ("POST", "uploadId="), ("HEAD", "")],
    ids=["begin", "part", "complete", "look"],
)
def test_an_upload_survives_faults(s3: S3Server, kind: str, method: str, query: str) -> None:
    content = random.Random(3).randbytes(11 * MIB)
    fault = s3.inject(kind, method=method, query=query, times=1 if kind == "hang" else 2)
    put(remote(), "__0_0.distcp", content)
    assert fault.struck == fault.times
    assert remote().read_bytes("__0_0.distcp") == content
    assert s3.unfinished_uploads() == []


@pytest.mark.parametrize(
    ("method", "query"),
    [("PUT", "partNumber=2"), ("POST", "uploadId=")],
    ids=["part", "complete"],
)
def test_an_upload_survives_lost_answers(s3: S3Server, method: str, query: str) -> None:
    """The server has done what it was asked; asked again, it knows no such upload any more."""
    content = random.Random(5).randbytes(11 * MIB)
    put(remote(), "__0_0.distcp", bytes(11 * MIB))  # of the same size, to be taken for another
    fault = s3.inject("lost", method=method, query=query)
    put(remote(), "__0_0.distcp", content)
    assert fault.struck == 1
    assert remote().read_bytes("__0_0.distcp") == content
    assert s3.unfinished_uploads() == []


def test_an_upload_that_somebody_aborted_is_no_file(s3: S3Server) -> None:
    put(remote(), "__0_0.distcp", bytes(11 * MIB))
    s3.inject("gone", method="POST", query="uploadId=", times=100)
    with pytest.raises(CheckpointError, match="could not be written: no such bucket or file"):
        put(remote(), "__0_0.distcp", bytes(11 * MIB))
    assert s3.stored_keys() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["503", "reset"])
@pytest.mark.parametrize(
    ("method", "query"),
    [("POST", "uploads"), ("PUT", "partNumber=2"), ("POST", "uploadId=")],
    ids=["begin", "part", "complete"],
)
def test_an_upload_that_cannot_be_finished_leaves_nothing(
    s3: S3Server, kind: str, method: str, query: str
) -> None:
    fault = s3.inject(kind, method=method, query=query, times=100)
    message = rf"^{URL}/__0_0\.distcp could not be written: [^\n]+$"
    with pytest.raises(CheckpointError, match=message):
        put(remote(), "__0_0.distcp", bytes(11 * MIB))
    assert fault.struck > 2
    assert s3.stored_keys() == []
    assert s3.unfinished_uploads() == []


def test_what_a_killed_upload_left_goes_with_the_checkpoint(s3: S3Server) -> None:
    client = s3.client()
    for key in (f"{PREFIX}/__1_0.distcp", "another/run"):
        client.create_multipart_upload(Bucket=BUCKET, Key=key)
    client.close()
    put(remote(), "__0_0.distcp", b"content")
    remote().remove_all()
    assert s3.stored_keys() == []
    assert s3.unfinished_uploads() == ["another/run"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["503", "hang", "reset", "truncate", "short"])
def test_reads_survive_faults(s3: S3Server, tmp_path: Path, kind: str) -> None:
    content = random.Random(4).randbytes(9 * MIB)
    put(remote(), "__0_0.distcp", content)
    times = 1 if kind == "hang" else 2
    fault = s3.inject(kind, method="GET", path="__0_0.distcp", times=times)
    assert remote().read_bytes("__0_0.distcp") == content
    again = s3.inject(kind, method="GET", path="__0_0.distcp", times=times)
    remote().download("__0_0.distcp", tmp_path / "copy", record_of(content))
    assert (tmp_path / "copy").read_bytes() == content
    assert (fault.struck, again.struck) == (times, times)


def test_a_flipped_bit_is_fetched_again(s3: S3Server, tmp_path: Path) -> None:
    put(remote(), "common.pt", b"content")
    fault = s3.inject("flip", method="GET", path="common.pt")
    remote().download("common.pt", tmp_path / "copy", record_of(b"content"))
    assert fault.struck == 1
    assert (tmp_path / "copy").read_bytes() == b"content"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["503", "truncate", "short"])
def test_reads_end_with_one_sentence(s3: S3Server, tmp_path: Path, kind: str) -> None:
    put(remote(), "__0_0.distcp", bytes(9 * MIB))
    fault = s3.inject(kind, method="GET", path="__0_0.distcp", times=1000)
    message = rf"^{URL}/__0_0\.distcp could not be read: [^\n]+$"
    with pytest.raises(CheckpointError, match=message):
        remote().download("__0_0.distcp", tmp_path / "copy", record_of(bytes(9 * MIB)))
    assert fault.struck >= QUICK.attempts
    assert list(tmp_path.iterdir()) == []


def test_an_endpoint_that_never_answers_is_given_up(s3: S3Server) -> None:
    s3.inject("hang", method="POST", times=1000)
    patience = Patience(read_timeout_s=60.0, request_timeout_s=0.5, call_timeout_s=1.0, attempts=2)
    with (
        pytest.raises(CheckpointError, match=r"could not be written: no answer in time"),
        RemoteStorage(URL, patience, part_bytes=5 * MIB).write("x") as file,
    ):
        file.write(bytes(6 * MIB))


def test_a_whole_bucket_is_not_removed(s3: S3Server) -> None:
    with pytest.raises(CheckpointError, match="is a whole bucket"):
        open_storage(f"s3://{BUCKET}", Path()).remove_all()


# --- access ---------------------------------------------------------------------------------------


def test_access_is_checked_and_leaves_nothing(s3: S3Server, tmp_path: Path) -> None:
    check_access(None)
    check_access(f"s3://{BUCKET}/some/prefix")
    check_access(f"file://{tmp_path}/stored")
    methods = [request.split()[0] for request in s3.requests]
    assert {"PUT", "GET", "DELETE"} <= set(methods)
    assert s3.stored_keys() == []
    assert list((tmp_path / "stored").iterdir()) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "s3://no-such-bucket/x",
            "s3://no-such-bucket/x could not be written: no such bucket",
        ),
        ("s5://bucket/x", "s5://bucket/x begins with s5://, which fsspec does not know"),
        ("s3://", "s3:// is no URL of a folder: give one like s3://BUCKET/PREFIX"),
        ("bucket/x", "bucket/x is no URL of a folder"),
        (
            "s3://key:secret@b/x",
            "s3://b/x was given with credentials or parameters: leave them out",
        ),
    ],
)
def test_a_wrong_url_is_refused(s3: S3Server, url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^checkpoint\.storage: {message}[^\n]*$"):
        check_access(url)


def test_missing_credentials_are_told(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match=r"no credentials .* set AWS_ACCESS_KEY_ID"):
        check_access(f"s3://{BUCKET}/x")


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from fsspec.registry import _registry

    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'overland\[s3\]'"):
        check_access("s3://bucket/x")


def test_an_endpoint_that_does_not_answer_is_told(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "PROBE_LIMIT_S", 1.0)
    for method in ("PUT", "POST", "GET", "HEAD"):
        s3.inject("hang", method=method, times=1000)
    with pytest.raises(ConfigError, match=r"s3://checkpoints/x did not answer within 1 s"):
        check_access("s3://checkpoints/x")


def test_a_refused_connection_is_told(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(
        ConfigError, match=r"could not be written: Could not connect .*127\.0\.0\.1"
    ):
        check_access(f"s3://{BUCKET}/x")


def test_credentials_are_never_shown() -> None:
    text = "no s3://key:se/cret@b/c, no https://h/p?X-Amz-Signature=abc&x=1 ; really?"
    assert without_credentials("s3://key:secret@b/c") == "s3://b/c"
    assert "Signature" not in without_credentials(text)
    assert without_credentials(text).endswith(" ; really?")


def test_each_save_has_a_place_of_its_own() -> None:
    assert checkpoint_url("s3://b/p/", "run", 200, 3) == "s3://b/p/run/step_00000200-003"
