"""Every input format, and what each kind of bad file is told."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from configs.errors import CorpusError
from configs.schema import DataConfig
from tasks.data.formats import read_documents
from tasks.data.sources import expand_sources

TEXTS = ["The first document.", "Caf\u00e9, the second.", "A third one\nwith two lines."]
LINES = (
    '{"text": "The first document.", "n": 1}\n'
    "\n"
    '{"n": 2, "text": "Caf\u00e9, the second."}\n'
    '{"text": "A third one\\nwith two lines."}'
).encode()


def read(path: Path | str, text_field: str = "text") -> list[str]:
    data = DataConfig(paths=[str(path)], text_field=text_field)
    sources = expand_sources(data, lambda message: None)
    return [text for source in sources for text in read_documents(source)]


def message_of(path: Path | str, text_field: str = "text") -> str:
    with pytest.raises(CorpusError) as caught:
        read(path, text_field)
    message = str(caught.value)
    assert "\n" not in message
    return message


def _write_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2, 3], "text": TEXTS}), path)


def _write_datasets(path: Path) -> None:
    datasets.Dataset.from_dict({"n": [1, 2, 3], "text": TEXTS}).save_to_disk(str(path))


def _write_dataset_dict(path: Path) -> None:
    splits = {
        "test": datasets.Dataset.from_dict({"text": ["left out"]}),
        "train": datasets.Dataset.from_dict({"text": TEXTS}),
    }
    datasets.DatasetDict(splits).save_to_disk(str(path))


def _two_frames(content: bytes) -> bytes:
    half = content.index(b"\n") + 1
    compress = zstandard.ZstdCompressor().compress
    return compress(content[:half]) + compress(content[half:])


WRITERS: dict[str, Callable[[Path], object]] = {
    "plain.jsonl": lambda path: path.write_bytes(LINES),
    "mark.jsonl": lambda path: path.write_bytes(b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n")),
    "packed.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "packed.jsonl.zst": lambda path: path.write_bytes(_two_frames(LINES)),
    "table.parquet": _write_parquet,
    "saved": _write_datasets,
    "saved_splits": _write_dataset_dict,
}


@pytest.mark.parametrize("name", WRITERS)
def test_format_gives_its_documents(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    assert read(tmp_path / name) == TEXTS


def test_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\ufeffone\n\ntwo\n", encoding="utf-8")
    assert read(tmp_path / "a.txt") == ["one\n\ntwo\n"]


def test_null_text_is_an_empty_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": null}\n')
    assert read(tmp_path / "a.jsonl") == [""]


def test_binary_file_is_named_with_offset(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"text\0more")
    message = message_of(tmp_path / "a.txt")
    assert "a.txt" in message and "NUL byte at offset 4" in message


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz"])
def test_undecodable_byte_is_named_with_offset(tmp_path: Path, name: str) -> None:
    content = b'{"text": "good"}\n{"text": "caf\xe9"}\n'
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    message = message_of(tmp_path / name)
    assert f"byte 0xe9 at offset {content.index(0xE9)}" in message and name in message


def test_malformed_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    assert "a.jsonl:2 is not JSON" in message_of(tmp_path / "a.jsonl")


def test_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('["text"]\n')
    assert "a.jsonl:1 must be a JSON object" in message_of(tmp_path / "a.jsonl")


def test_deeply_nested_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("[" * 100_000 + "\n")
    assert "a.jsonl:1 is not JSON" in message_of(tmp_path / "a.jsonl")


def test_missing_field_names_the_fields_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "x", "id": 1}\n')
    message = message_of(tmp_path / "a.jsonl")
    assert "a.jsonl:1 has no field 'text'" in message
    assert "data.text_field" in message and "'body', 'id'" in message
    assert read(tmp_path / "a.jsonl", text_field="body") == ["x"]


def test_field_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": 5}\n')
    assert "must hold text, not int" in message_of(tmp_path / "a.jsonl")


@pytest.mark.parametrize("name", ["table.parquet", "saved"])
def test_missing_column_names_the_columns(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    message = message_of(tmp_path / name, text_field="content")
    assert "no column 'content'" in message and "'n', 'text'" in message


def test_column_that_is_no_text_is_refused(tmp_path: Path) -> None:
    _write_parquet(tmp_path / "a.parquet")
    assert "must hold text, not int" in message_of(tmp_path / "a.parquet", text_field="n")


@pytest.mark.parametrize("name", ["packed.jsonl.gz", "packed.jsonl.zst", "table.parquet"])
def test_file_that_was_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    path.write_bytes(path.read_bytes()[:-5])
    assert name in message_of(path)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(LINES)
    assert name in message_of(tmp_path / name)


def test_datasets_folder_without_its_data_is_refused(tmp_path: Path) -> None:
    _write_datasets(tmp_path / "saved")
    for file in (tmp_path / "saved").glob("*.arrow"):
        file.unlink()
    assert "saved" in message_of(tmp_path / "saved")


def test_several_splits_without_train_are_named(tmp_path: Path) -> None:
    splits = {name: datasets.Dataset.from_dict({"text": ["a"]}) for name in ("en", "fr")}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    assert "en, fr" in message_of(tmp_path / "saved")
    assert read(tmp_path / "saved" / "en") == ["a"]
