"""Wheels as corpora: a wheel is built here, and placed in the cache or served by a local index."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from configs.errors import CorpusError
from configs.schema import DataConfig, PackageSource
from tasks.data.formats import read_documents
from tasks.data.packages import package_cache_dir
from tasks.data.sources import expand_sources

TEXTS = ["The first document.", "The second."]
NAME = "overland_test_corpus"


def wheel_bytes() -> bytes:
    parquet = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"body": TEXTS}), parquet)
    members: dict[str, bytes | str] = {
        f"{NAME}/data/list.json": json.dumps([{"body": text} for text in TEXTS]),
        f"{NAME}/data/named.json": json.dumps({str(i): {"body": t} for i, t in enumerate(TEXTS)}),
        f"{NAME}/data/lines.jsonl": "\n".join(json.dumps({"body": text}) for text in TEXTS),
        f"{NAME}/data/table.parquet": parquet.getvalue(),
        f"{NAME}/data/plain.txt": "Plain text.",
        f"{NAME}/data/number.json": "5",
        f"{NAME}/__init__.py": "raise SystemExit('imported')",
        f"{NAME}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
        f"{NAME}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{NAME}-1.0.dist-info/RECORD": "",
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return content.getvalue()


WHEEL = wheel_bytes()
SHA256 = hashlib.sha256(WHEEL).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an index folder that pip finds nothing else in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    (tmp_path / "index").mkdir()
    folder = package_cache_dir()
    folder.mkdir(parents=True)
    return folder


def read(member: str, sha256: str = SHA256, **changes: str) -> list[str]:
    package = PackageSource.model_validate(
        {"name": NAME, "version": "1.0", "sha256": sha256, "member": member, "text_field": "body"}
        | changes
    )
    sources = expand_sources(DataConfig(packages=[package]), lambda message: None)
    return [text for source in sources for text in read_documents(source)]


def message_of(member: str, sha256: str = SHA256, **changes: str) -> str:
    with pytest.raises(CorpusError) as caught:
        read(member, sha256, **changes)
    return str(caught.value)


@pytest.mark.parametrize("member", ["list.json", "named.json", "lines.jsonl", "table.parquet"])
def test_members_of_a_cached_wheel(cache: Path, member: str) -> None:
    (cache / f"{SHA256}.whl").write_bytes(WHEEL)
    assert read(f"{NAME}/data/{member}") == TEXTS
    assert read(f"{NAME}/data/plain.txt") == ["Plain text."]


def test_wheel_is_downloaded_once_and_never_installed(cache: Path, tmp_path: Path) -> None:
    index_file = tmp_path / "index" / f"{NAME}-1.0-py3-none-any.whl"
    index_file.write_bytes(WHEEL)
    assert read(f"{NAME}/data/list.json", SHA256.upper()) == TEXTS
    index_file.unlink()
    assert read(f"{NAME}/data/list.json") == TEXTS
    assert [path.name for path in cache.iterdir()] == [f"{SHA256}.whl"]


def test_damaged_cache_is_fetched_again(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "index" / f"{NAME}-1.0-py3-none-any.whl").write_bytes(WHEEL)
    (cache / f"{SHA256}.whl").write_bytes(WHEEL[:-10])
    assert read(f"{NAME}/data/list.json") == TEXTS


def test_other_content_is_refused_and_not_kept(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "index" / f"{NAME}-1.0-py3-none-any.whl").write_bytes(WHEEL)
    message = message_of(f"{NAME}/data/list.json", "ab" * 32)
    assert SHA256 in message and "ab" * 32 in message
    assert list(cache.iterdir()) == []


def test_package_that_no_index_has(cache: Path) -> None:
    message = message_of("a/b.json", version="9.9")
    assert f"pip cannot download a wheel of {NAME}==9.9" in message
    assert str(cache / f"{SHA256}.whl") in message and "\n" not in message
    assert list(cache.iterdir()) == []


@pytest.mark.slow
def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    assert "no connection to the package index" in message_of("a/b.json")


def test_bad_members(cache: Path) -> None:
    (cache / f"{SHA256}.whl").write_bytes(WHEEL)
    assert f"has no member {NAME}/data/absent.json" in message_of(f"{NAME}/data/absent.json")
    assert "no known format" in message_of(f"{NAME}/__init__.py")
    assert "must hold a list of records" in message_of(f"{NAME}/data/number.json")
    message = message_of(f"{NAME}/data/named.json", text_field="extract")
    assert "record '0' has no field 'extract'" in message and "'body'" in message
    assert "text_field of the package" in message


def test_hash_that_is_none() -> None:
    assert "64 hexadecimal digits" in message_of("a/b.json", "../../etc")
