from __future__ import annotations

from pathlib import Path

import pytest
from data_corpora import english_document, write_jsonl

from configs.errors import CorpusError
from tasks.data import corpus as corpus_module
from tasks.data.corpus import Corpus, Split, build_corpus, read_shards
from tasks.data.sources import Source


def build(
    folder: Path,
    *groups: list[str],
    fraction: float = 0.1,
    seed: int = 1,
    messages: list[str] | None = None,
) -> Corpus:
    files = [write_jsonl(folder / f"{i}.jsonl", texts) for i, texts in enumerate(groups)]
    return build_corpus(
        [Source(str(file), file, "jsonl", "text") for file in files],
        folder / f"corpus-{seed}",
        validation_fraction=fraction,
        seed=seed,
        report=[].append if messages is None else messages.append,
    )


def texts_of(split: Split) -> list[str]:
    return list(read_shards(split.shards))


def test_duplicates_and_empty_documents_are_counted_and_left_out(tmp_path: Path) -> None:
    texts = [english_document(i) for i in range(50)]
    messages: list[str] = []
    corpus = build(tmp_path, texts, ["", " \n", texts[3] + "  \r\n", texts[4]], messages=messages)
    assert (corpus.documents_read, corpus.documents_empty, corpus.documents_duplicate) == (54, 2, 2)
    assert corpus.documents_by_source == [50, 4]
    assert sorted(texts_of(corpus.train) + texts_of(corpus.validation)) == sorted(texts)
    assert "2 duplicate, 2 empty" in messages[0]


def test_splits_are_disjoint_and_counted(tmp_path: Path) -> None:
    corpus = build(tmp_path, [english_document(i) for i in range(300)])
    train, validation = texts_of(corpus.train), texts_of(corpus.validation)
    assert not set(train) & set(validation)
    assert (len(train), len(validation)) == (corpus.train.documents, corpus.validation.documents)
    assert 15 <= len(validation) <= 50
    assert corpus.validation.text_bytes == sum(len(text.encode()) for text in validation)


def test_document_keeps_its_split_when_others_are_added(tmp_path: Path) -> None:
    texts = [english_document(i) for i in range(300)]
    before = set(texts_of(build(tmp_path / "a", texts[:150]).validation))
    after = set(texts_of(build(tmp_path / "b", texts[::-1]).validation))
    assert before and before == after & set(texts[:150])


def test_seed_decides_the_split(tmp_path: Path) -> None:
    texts = [english_document(i) for i in range(200)]
    one, two = (texts_of(build(tmp_path, texts, seed=seed).validation) for seed in (1, 2))
    assert one != two


@pytest.mark.parametrize("fraction", [0.001, 0.999])
@pytest.mark.parametrize("count", [2, 5])
def test_no_split_stays_empty(tmp_path: Path, fraction: float, count: int) -> None:
    texts = [english_document(i) for i in range(count)]
    corpus = build(tmp_path, texts, fraction=fraction)
    sizes = sorted([corpus.train.documents, corpus.validation.documents])
    assert sizes == [1, count - 1]
    assert sorted(texts_of(corpus.train) + texts_of(corpus.validation)) == sorted(texts)


def test_large_corpus_is_written_in_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "SHARD_TEXT_BYTES", 2_000)
    texts = [english_document(i) for i in range(100)]
    corpus = build(tmp_path, texts)
    assert len(corpus.train.shards) > 3
    assert sorted(texts_of(corpus.train) + texts_of(corpus.validation)) == sorted(texts)


def test_long_document_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "MAX_DOCUMENT_CHARACTERS", 100)
    messages: list[str] = []
    corpus = build(tmp_path, [english_document(1)], messages=messages)
    pieces = texts_of(corpus.train) + texts_of(corpus.validation)
    assert corpus.documents_read == 1 and corpus.documents_cut == 1
    assert len(pieces) > 1 and all(len(piece) <= 100 for piece in pieces)
    assert "cut 1 documents" in messages[1]


def test_empty_corpus(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="the corpus is empty: 2 documents were read"):
        build(tmp_path, ["", "  "])


def test_corpus_of_one_distinct_document(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"only one distinct document \(2 were read\)"):
        build(tmp_path, ["same", "same "])
