from __future__ import annotations

from pathlib import Path

import pytest

from configs.errors import CorpusError
from configs.schema import DataConfig
from tasks.data.sources import expand_sources


def names(*paths: Path | str) -> list[str]:
    data = DataConfig(paths=[str(path) for path in paths])
    return [Path(source.name).name for source in expand_sources(data, lambda message: None)]


def message_of(*paths: Path | str) -> str:
    with pytest.raises(CorpusError) as caught:
        names(*paths)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.jsonl", "sub/c.parquet", "sub/d.JSONL.GZ", "notes.md", ".hidden.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "e.txt").touch()
    return tmp_path


def test_folder_is_searched_in_order_of_names(folder: Path) -> None:
    assert names(folder) == ["a.jsonl", "b.txt", "c.parquet", "d.JSONL.GZ"]


def test_globs_match_files_and_folders(folder: Path) -> None:
    assert names(folder / "*.txt") == ["b.txt"]
    assert names(folder / "**" / "*.parquet") == ["c.parquet"]
    assert names(folder / "s*") == ["c.parquet", "d.JSONL.GZ"]


def test_file_named_twice_counts_once(folder: Path) -> None:
    assert names(folder / "b.txt", folder, folder / "*.txt")[0] == "b.txt"
    assert len(names(folder / "b.txt", folder, folder / "*.txt")) == 4


def test_link_that_loops_is_not_followed(folder: Path) -> None:
    (folder / "sub" / "loop").symlink_to(folder)
    assert names(folder) == ["a.jsonl", "b.txt", "c.parquet", "d.JSONL.GZ"]


def test_file_with_magic_characters_in_its_name_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "what[1].txt").touch()
    assert names(tmp_path / "what[1].txt") == ["what[1].txt"]


def test_bad_paths(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "names no text" in message_of()
    assert f"{folder}/absent, which does not exist" in message_of(folder / "absent")
    assert "*.zip in data.paths matches nothing" in message_of(folder / "*.zip")
    assert "*.md in data.paths matches no .txt" in message_of(folder / "*.md")
    assert "notes.md is of no known format" in message_of(folder / "notes.md")
    assert "empty holds no .txt" in message_of(tmp_path / "empty")
