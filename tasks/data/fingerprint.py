"""Whether a data set is what the config asks for: one hash over all that decides its content.

Sources count by content, not by name or time, so a corpus may be moved or copied without being
prepared again. A file that has the size, time and inode of the last prepare is taken to be unchanged
(sources.json keeps them, as git's index does), so that a large corpus is not read again at each start.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import CorpusError
from configs.files import sha256_of_file, sha256_of_json, write_json
from configs.load import absolute_paths
from configs.records import SourceRecord
from configs.schema import RunConfig
from tasks.data.sources import DATASETS_FORMAT, Source
from tasks.data.tokenizer import given_tokenizer_files

_FORMAT_VERSION = 1
"""Raised when the same input would be prepared differently."""


@dataclass(frozen=True)
class HashedSource:
    """A source and the hash of its files."""

    source: Source
    size_bytes: int
    sha256: str

    def record(self, documents: int) -> SourceRecord:
        """For the manifest."""
        return SourceRecord(
            name=self.source.name,
            size_bytes=self.size_bytes,
            sha256=self.sha256,
            documents=documents,
        )


class SourceHashes:
    """Hashes of files, remembered in a file of path -> [stamp, SHA-256]."""

    def __init__(self, remembered: Path) -> None:
        self._known = _read_known(remembered)
        self._used: dict[str, tuple[str, str]] = {}

    def hash_source(self, source: Source) -> HashedSource:
        """Hash all files of a source."""
        try:
            sizes = [path.stat().st_size for path in source.files()]
            hashes = [self._hash_file(path) for path in source.files()]
        except OSError as error:
            raise CorpusError(f"{source.name} cannot be read: {error.strerror or error}") from error
        if source.format != DATASETS_FORMAT:
            return HashedSource(source, sizes[0], hashes[0])
        names = [str(path.relative_to(source.path)) for path in source.files()]
        files = dict(zip(names, hashes, strict=True))
        return HashedSource(source, sum(sizes), sha256_of_json(files))

    def save(self, path: Path) -> None:
        """Remember the hashes that were asked for."""
        write_json(path, self._used)

    def _hash_file(self, path: Path) -> str:
        status = path.stat()
        stamp = f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"
        key = os.path.abspath(path)  # noqa: PTH100
        known_stamp, known_hash = self._known.get(key, ("", ""))
        sha256 = known_hash if stamp == known_stamp else sha256_of_file(path)
        self._used[key] = (stamp, sha256)
        return sha256


def _read_known(path: Path) -> dict[str, tuple[str, str]]:
    try:
        content = json.loads(path.read_bytes())
        return {key: (str(stamp), str(sha256)) for key, (stamp, sha256) in content.items()}
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}  # nothing to trust: every file is hashed


def data_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that decide what is prepared, by their dotted keys, as the manifest keeps them."""
    data = absolute_paths(config).data
    given = data.tokenizer.path
    return {
        "data.paths": data.paths,
        "data.packages": [package.model_dump(mode="json") for package in data.packages],
        "data.text_field": data.text_field,
        "data.validation_fraction": data.validation_fraction,
        "data.tokenizer.path": None if given is None else str(given),
        "data.tokenizer.vocab_size": data.tokenizer.vocab_size if given is None else None,
        "model.sequence_length": config.model.sequence_length,
        "seed": config.seed,
    }


def fingerprint_of(config: RunConfig, sources: list[HashedSource]) -> str:
    """SHA-256 over the sources and every setting that the prepared files depend on."""
    tokenizer = config.data.tokenizer
    given = given_tokenizer_files(tokenizer.path) if tokenizer.path is not None else []
    return sha256_of_json(
        {
            "format_version": _FORMAT_VERSION,
            "sources": [
                [s.source.format, s.source.member, s.source.text_field, s.sha256] for s in sources
            ],
            "validation_fraction": config.data.validation_fraction,
            "tokenizer": [sha256_of_file(file) for file in given] or tokenizer.vocab_size,
            "sequence_length": config.model.sequence_length,
            "seed": config.seed,
        }
    )
