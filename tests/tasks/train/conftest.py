"""A tiny corpus, and run directories with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from training_jobs import END_OF_TEXT, VOCAB_SIZE, write_split

from configs.records import DataManifest
from configs.rundir import RunDir, write_record


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared data folder."""
    data_dir = tmp_path_factory.mktemp("corpus") / "data"
    data_dir.mkdir()
    manifest = DataManifest(
        fingerprint="test-corpus",
        sources=[],
        documents_read=240,
        documents_empty=0,
        documents_duplicate=0,
        tokenizer_sha256="test-tokenizer",
        vocab_size=VOCAB_SIZE,
        end_of_text_id=END_OF_TEXT,
        train=write_split(data_dir, "train", 200, seed=1),
        validation=write_split(data_dir, "validation", 40, seed=2),
        bytes_per_token=1.0,
        created_at=0.0,
        duration_s=0.0,
    )
    write_record(data_dir / "manifest.json", manifest)
    return data_dir


@pytest.fixture(scope="session")
def new_run(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Callable[[], RunDir]:
    """Makes a run directory with the corpus in it."""

    def make() -> RunDir:
        run = RunDir(tmp_path_factory.mktemp("run"))
        shutil.copytree(corpus, run.data_dir)
        return run

    return make
