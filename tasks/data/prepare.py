"""Prepare: raw text -> normalised, exactly deduplicated, tokenized Megatron data set.

    data/
      tokenizer/                     tokenizer.json, tokenizer_config.json
      train.bin, train.idx           every document ends with the end-of-text token
      validation.bin, validation.idx
      evaluation/*.jsonl             held-out documents, see tasks.data.heldout
      sources.json                   hashes of the sources with size and time, see tasks.data.fingerprint
      manifest.json                  DataManifest, written last

Everything is built in a sibling folder, made durable and renamed into place, so `data/` is whole or
absent. What a killed prepare left is removed by the next one. One prepare per run directory at a time:
the run's lock sees to that.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from configs.errors import CorpusError
from configs.files import sha256_of_file, sync_directory, sync_file
from configs.records import DataManifest, SplitRecord
from configs.rundir import read_record, write_record
from configs.schema import RunConfig
from tasks.data.corpus import TRAIN, VALIDATION, Corpus, build_corpus
from tasks.data.fingerprint import HashedSource, SourceHashes, data_settings, fingerprint_of
from tasks.data.heldout import write_heldout
from tasks.data.megatron import TokenizedSplit, tokenize_splits
from tasks.data.sources import expand_sources
from tasks.data.tokenizer import TOKENIZER_FILE, make_tokenizer, token_id, vocabulary_size

MANIFEST_FILE = "manifest.json"
SOURCES_FILE = "sources.json"
TOKENIZER_FOLDER = "tokenizer"
_WORK_FOLDER = "work"

Report = Callable[[str], None]


@dataclass(frozen=True)
class _Inputs:
    """Everything that decides what is prepared."""

    config: RunConfig
    sources: list[HashedSource]
    hashes: SourceHashes
    fingerprint: str


@dataclass(frozen=True)
class _Built:
    """What was made of the inputs."""

    corpus: Corpus
    tokenizer: Tokenizer
    end_of_text: str
    train: TokenizedSplit
    validation: TokenizedSplit


def prepare(config: RunConfig, data_dir: Path, *, report: Report) -> DataManifest:
    """Make `data_dir` hold the data set of `config`; returns at once when it does already."""
    _remove_leftovers(data_dir)
    sources = expand_sources(config.data, report)
    hashes = SourceHashes(data_dir / SOURCES_FILE)
    hashed = [hashes.hash_source(source) for source in sources]
    inputs = _Inputs(config, hashed, hashes, fingerprint_of(config, hashed))
    manifest = _existing(data_dir, inputs.fingerprint)
    if manifest is not None:
        report(f"the data set is prepared already: {manifest.train.tokens:,} tokens to train on")
        return _kept(data_dir, manifest, config)
    building = _sibling(data_dir, "preparing")
    building.mkdir(parents=True)
    try:
        manifest = _build(inputs, building, report)
        _publish(building, data_dir)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    report(
        f"prepared {manifest.train.tokens:,} tokens to train on and {manifest.validation.tokens:,} for "
        f"validation in {manifest.duration_s:.1f} s"
    )
    return manifest


def _build(inputs: _Inputs, folder: Path, report: Report) -> DataManifest:
    """Write the whole data set into `folder`, its manifest last."""
    started_at = time.time()
    config, work_dir = inputs.config, folder / _WORK_FOLDER
    corpus = build_corpus(
        [hashed.source for hashed in inputs.sources],
        work_dir / "corpus",
        validation_fraction=config.data.validation_fraction,
        seed=config.seed,
        report=report,
    )
    built = _tokenize(config, corpus, folder, report)
    write_heldout(
        corpus.validation,
        built.tokenizer,
        folder / "evaluation",
        sequence_length=config.model.sequence_length,
        seed=config.seed,
        report=report,
    )
    shutil.rmtree(work_dir)
    inputs.hashes.save(folder / SOURCES_FILE)
    manifest = _manifest_of(inputs, folder, built, started_at)
    write_record(folder / MANIFEST_FILE, manifest)
    return manifest


def _tokenize(config: RunConfig, corpus: Corpus, folder: Path, report: Report) -> _Built:
    """Make the tokenizer and the token files."""
    sequence_length = config.model.sequence_length
    tokenizer, end_of_text = make_tokenizer(
        config.data.tokenizer,
        corpus.train,
        folder / TOKENIZER_FOLDER,
        model_max_length=sequence_length,
        report=report,
    )
    train, validation = tokenize_splits(
        [corpus.train, corpus.validation],
        folder / TOKENIZER_FOLDER,
        end_of_text,
        work_dir=folder / _WORK_FOLDER,
        output_dir=folder,
        workers=config.data.workers,
    )
    _check_size(train, validation, sequence_length)
    return _Built(corpus, tokenizer, end_of_text, train, validation)


def _manifest_of(inputs: _Inputs, folder: Path, built: _Built, started_at: float) -> DataManifest:
    corpus, now = built.corpus, time.time()
    return DataManifest(
        fingerprint=inputs.fingerprint,
        config=data_settings(inputs.config),
        sources=[
            hashed.record(documents)
            for hashed, documents in zip(inputs.sources, corpus.documents_by_source, strict=True)
        ],
        documents_read=corpus.documents_read,
        documents_empty=corpus.documents_empty,
        documents_duplicate=corpus.documents_duplicate,
        tokenizer_sha256=sha256_of_file(folder / TOKENIZER_FOLDER / TOKENIZER_FILE),
        vocab_size=vocabulary_size(built.tokenizer),
        end_of_text_id=token_id(built.tokenizer, built.end_of_text),
        train=_split_record(folder, TRAIN, built.train),
        validation=_split_record(folder, VALIDATION, built.validation),
        bytes_per_token=_bytes_per_token(built),
        created_at=now,
        duration_s=now - started_at,
    )


def _check_size(train: TokenizedSplit, validation: TokenizedSplit, sequence_length: int) -> None:
    """Each split must fill one sample: the sequence and the token that follows it."""
    needed = sequence_length + 1
    if train.tokens < needed:
        raise CorpusError(
            f"the corpus is too small: {train.tokens} tokens in {train.documents} documents to train on, but "
            f"one sample takes {needed}; add text or lower model.sequence_length ({sequence_length})"
        )
    if validation.tokens < needed:
        raise CorpusError(
            f"the validation split is too small: {validation.tokens} tokens in {validation.documents} "
            f"documents, but one sample takes {needed}; add text, raise data.validation_fraction or lower "
            f"model.sequence_length ({sequence_length})"
        )


def _split_record(folder: Path, name: str, split: TokenizedSplit) -> SplitRecord:
    return SplitRecord(
        prefix=name,
        documents=split.documents,
        tokens=split.tokens,
        sha256_bin=sha256_of_file(folder / f"{name}.bin"),
        sha256_idx=sha256_of_file(folder / f"{name}.idx"),
    )


def _bytes_per_token(built: _Built) -> float:
    """Bytes of UTF-8 text per token, end-of-text tokens left out."""
    text_bytes = built.corpus.train.text_bytes + built.corpus.validation.text_bytes
    splits = (built.train, built.validation)
    return text_bytes / sum(split.tokens - split.documents for split in splits)


def _existing(data_dir: Path, fingerprint: str) -> DataManifest | None:
    """The manifest of `data_dir`, if it is this data set and its files are there in full."""
    manifest = read_record(data_dir / MANIFEST_FILE, DataManifest)
    if manifest is None or manifest.fingerprint != fingerprint:
        return None
    splits_whole = all(
        _is_whole(data_dir, split) for split in (manifest.train, manifest.validation)
    )
    return (
        manifest
        if splits_whole and (data_dir / TOKENIZER_FOLDER / TOKENIZER_FILE).is_file()
        else None
    )


def _kept(data_dir: Path, manifest: DataManifest, config: RunConfig) -> DataManifest:
    """The manifest with the settings of now: the same corpus may have moved."""
    settings = data_settings(config)
    if manifest.config != settings:
        manifest = manifest.model_copy(update={"config": settings})
        write_record(data_dir / MANIFEST_FILE, manifest)
    return manifest


def _is_whole(data_dir: Path, split: SplitRecord) -> bool:
    bin_file, idx_file = (data_dir / f"{split.prefix}.{suffix}" for suffix in ("bin", "idx"))
    if not bin_file.is_file() or not idx_file.is_file():
        return False
    # Tokens take 2 or 4 bytes.
    return bin_file.stat().st_size in (2 * split.tokens, 4 * split.tokens)


def _sibling(data_dir: Path, purpose: str) -> Path:
    return data_dir.with_name(f".{data_dir.name}.{purpose}-{uuid.uuid4().hex[:8]}")


def _remove_leftovers(data_dir: Path) -> None:
    """Remove what killed prepares left."""
    prefixes = tuple(f".{data_dir.name}.{purpose}-" for purpose in ("preparing", "replaced"))
    siblings = data_dir.parent.iterdir() if data_dir.parent.is_dir() else iter(())
    for folder in [path for path in siblings if path.name.startswith(prefixes)]:
        shutil.rmtree(folder)


def _publish(folder: Path, data_dir: Path) -> None:
    """Make every file durable, then rename the folder into place."""
    for directory, _, files in os.walk(folder):
        for file in files:
            sync_file(Path(directory, file))
        sync_directory(Path(directory))
    if data_dir.exists():
        replaced = _sibling(data_dir, "replaced")
        data_dir.rename(replaced)
        folder.rename(data_dir)
        shutil.rmtree(replaced)
    else:
        folder.rename(data_dir)
    sync_directory(data_dir.parent)
