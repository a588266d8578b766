"""The cleaned corpus on disk: sources are read once, and every later step reads these files.

    FOLDER/train-00000.jsonl.zst, ...        {"text": ...}, one document a line
    FOLDER/validation-00000.jsonl.zst, ...

The documents are kept, rather than read from the sources again, because sources may be one JSON file
in a wheel, or compressed, or on a slow share, and the tokenizer, the tokenized files and the held-out
tasks each need the text that was cleaned, without duplicates, in equal slices. In memory are one
document and the digests of all.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import zstandard

from configs.errors import CorpusError
from tasks.data.clean import DigestSet, cut, digest_of, normalise, split_position
from tasks.data.formats import read_documents
from tasks.data.sources import Source

TRAIN = "train"
VALIDATION = "validation"
SHARD_SUFFIX = ".jsonl.zst"
SHARD_TEXT_BYTES = 32 * 2**20
"""Text in one file: what a tokenizing process takes at a time."""
MAX_DOCUMENT_CHARACTERS = 1_000_000
"""Longer documents are cut: tokenizing takes some hundred bytes of memory per character."""
_ZSTD_LEVEL = 1


@dataclass
class Split:
    """One split's cleaned documents."""

    name: str
    documents: int = 0
    text_bytes: int = 0
    shards: list[Path] = field(default_factory=list)


@dataclass
class Corpus:
    """All cleaned documents, and what was left out."""

    train: Split
    validation: Split
    documents_read: int = 0
    documents_empty: int = 0
    documents_duplicate: int = 0
    documents_cut: int = 0
    documents_by_source: list[int] = field(default_factory=list)


class _SplitWriter:
    """Writes one split, a new file after every SHARD_TEXT_BYTES."""

    def __init__(self, folder: Path, name: str) -> None:
        self.split = Split(name)
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._room_bytes = 0

    def write(self, text: str) -> None:
        size_bytes = len(text.encode())
        if self._file is None or self._room_bytes <= 0:
            self._file = self._next_file()
        line = json.dumps({"text": text}, ensure_ascii=False) + "\n"
        self._file.write(line.encode())
        self._room_bytes -= size_bytes
        self.split.documents += 1
        self.split.text_bytes += size_bytes

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _next_file(self) -> IO[bytes]:
        self.close()
        number = len(self.split.shards)
        path = self._folder / f"{self.split.name}-{number:05d}{SHARD_SUFFIX}"
        self.split.shards.append(path)
        self._room_bytes = SHARD_TEXT_BYTES
        compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        return compressor.stream_writer(open(path, "wb"), closefd=True)


class _Splitter:
    """Puts documents into splits, so that neither stays empty.

    While one split has nothing, the document of the other that is nearest to the border is held back;
    it fills the empty split when nothing else does.
    """

    def __init__(self, folder: Path, fraction: float) -> None:
        self._fraction = fraction
        self._writers = {name: _SplitWriter(folder, name) for name in (TRAIN, VALIDATION)}
        self._both_filled = False
        self._spare: tuple[float, str, str] | None = None

    def add(self, text: str, position: float) -> None:
        name = VALIDATION if position < self._fraction else TRAIN
        if self._both_filled:
            self._writers[name].write(text)
            return
        newcomer = (abs(position - self._fraction), name, text)
        if self._spare is None:
            self._spare = newcomer
        elif self._spare[1] == name:
            self._spare, farther = sorted((self._spare, newcomer))
            self._writers[name].write(farther[2])
        else:
            self._both_filled = True
            for _, its_name, its_text in (self._spare, newcomer):
                self._writers[its_name].write(its_text)

    def finish(self) -> tuple[Split, Split]:
        """Train and validation, closed."""
        if self._spare is not None and not self._both_filled:
            _, name, text = self._spare
            self._writers[VALIDATION if name == TRAIN else TRAIN].write(text)
        self.close()
        return self._writers[TRAIN].split, self._writers[VALIDATION].split

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def build_corpus(
    sources: list[Source],
    folder: Path,
    *,
    validation_fraction: float,
    seed: int,
    report: Callable[[str], None],
) -> Corpus:
    """Read, clean, deduplicate and split all documents into files under `folder`."""
    folder.mkdir(parents=True)
    splitter = _Splitter(folder, validation_fraction)
    corpus = Corpus(Split(TRAIN), Split(VALIDATION))
    digests = DigestSet()
    try:
        for source in sources:
            before = corpus.documents_read
            for text in _clean_documents(source, corpus):
                digest = digest_of(text)
                if digests.add(digest):
                    splitter.add(text, split_position(digest, seed))
                else:
                    corpus.documents_duplicate += 1
            corpus.documents_by_source.append(corpus.documents_read - before)
        corpus.train, corpus.validation = splitter.finish()
    finally:
        splitter.close()
    _check_not_empty(corpus, len(digests), len(sources))
    _report_corpus(corpus, report)
    return corpus


def read_shards(shards: Iterable[Path]) -> Iterator[str]:
    """Documents of shard files, in order."""
    for shard in shards:
        with open(shard, "rb") as file:
            reader = zstandard.ZstdDecompressor().stream_reader(file)
            for line in io.BufferedReader(reader):
                text: str = json.loads(line)["text"]
                yield text


def _clean_documents(source: Source, corpus: Corpus) -> Iterator[str]:
    for raw in read_documents(source):
        corpus.documents_read += 1
        text = normalise(raw)
        if not text:
            corpus.documents_empty += 1
        elif len(text) <= MAX_DOCUMENT_CHARACTERS:
            yield text
        else:
            corpus.documents_cut += 1
            yield from cut(text, MAX_DOCUMENT_CHARACTERS)


def _check_not_empty(corpus: Corpus, distinct: int, num_sources: int) -> None:
    if distinct == 0:
        raise CorpusError(
            f"the corpus is empty: {corpus.documents_read} documents were read from {num_sources} sources "
            "and none has text"
        )
    if distinct == 1:
        raise CorpusError(
            f"the corpus has only one distinct document ({corpus.documents_read} were read), but training "
            "and validation need one each: give more files or records"
        )


def _report_corpus(corpus: Corpus, report: Callable[[str], None]) -> None:
    report(
        f"read {corpus.documents_read:,} documents: {corpus.train.documents:,} to train on, "
        f"{corpus.validation.documents:,} for validation, {corpus.documents_duplicate:,} duplicate, "
        f"{corpus.documents_empty:,} empty"
    )
    if corpus.documents_cut:
        report(
            f"cut {corpus.documents_cut:,} documents longer than {MAX_DOCUMENT_CHARACTERS:,} characters "
            "into pieces"
        )
