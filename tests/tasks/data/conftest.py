"""A small corpus, and the data set that prepare makes of it (once a session: it takes seconds)."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_corpora import NUM_DOCUMENTS, english_document, make_config, write_jsonl

from configs.records import DataManifest
from tasks.data.prepare import prepare


@pytest.fixture(scope="session")
def documents() -> list[str]:
    return [english_document(number) for number in range(NUM_DOCUMENTS)]


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", documents)


@pytest.fixture(scope="session")
def prepared(
    tmp_path_factory: pytest.TempPathFactory, corpus_file: Path
) -> tuple[Path, DataManifest]:
    """A data folder that tests only read, and its manifest."""
    data_dir = tmp_path_factory.mktemp("prepared") / "data"
    return data_dir, prepare(make_config(corpus_file), data_dir, report=lambda message: None)
