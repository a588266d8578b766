from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from data_corpora import english_document, make_config, write_jsonl
from tokenizers import Tokenizer

from configs.records import DataManifest
from tasks.data.corpus import Split, build_corpus, read_shards
from tasks.data.heldout import write_heldout
from tasks.data.sources import Source
from tasks.data.tokenizer import make_tokenizer

NAMES = ("perplexity", "cloze", "continuation", "copy")
Items = list[dict[str, Any]]


def splits_of(folder: Path, texts: list[str]) -> tuple[Split, Split]:
    file = write_jsonl(folder / "corpus.jsonl", texts)
    corpus = build_corpus(
        [Source(str(file), file, "jsonl", "text")],
        folder / "corpus",
        validation_fraction=0.5,
        seed=1,
        report=lambda message: None,
    )
    return corpus.train, corpus.validation


def heldout_of(
    folder: Path, texts: list[str], sequence_length: int = 128
) -> tuple[dict[str, Items], Tokenizer, list[str], list[str]]:
    """Items by task, the tokenizer, the validation documents and the reports."""
    train, validation = splits_of(folder, texts)
    config = make_config().data.tokenizer
    reports: list[str] = []
    tokenizer, _ = make_tokenizer(
        config, train, folder / "tokenizer", model_max_length=128, report=lambda message: None
    )
    write_heldout(
        validation,
        tokenizer,
        folder / "evaluation",
        sequence_length=sequence_length,
        seed=3,
        report=reports.append,
    )
    items = {name: read_items(folder / "evaluation" / f"{name}.jsonl") for name in NAMES}
    return items, tokenizer, list(read_shards(validation.shards)), reports


def read_items(path: Path) -> Items:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def plain(number: int) -> str:
    return english_document(number)


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, Items], Tokenizer, list[str], list[str]]:
    return heldout_of(tmp_path_factory.mktemp("heldout"), [plain(i) for i in range(200)])


def test_all_tasks_have_items_of_validation_documents(
    made: tuple[dict[str, Items], Tokenizer, list[str], list[str]],
) -> None:
    items, _, validation, reports = made
    assert [len(items[name]) for name in NAMES] == [40, 60, 60, 24] and reports == []
    assert all(item["text"] in validation for item in items["perplexity"])
    for item in items["cloze"]:
        assert any(item["context"] + item["target"] in text for text in validation)
    for item in items["continuation"]:
        true_passage = item["context"] + item["choices"][item["answer"]]
        assert any(true_passage in text for text in validation)
        assert all(any(c.strip() in text for text in validation) for c in item["choices"])


def test_targets_are_determined_by_their_contexts(
    made: tuple[dict[str, Items], Tokenizer, list[str], list[str]],
) -> None:
    items = made[0]
    for item in items["cloze"]:
        assert re.search(rf"\b{item['target'].strip()}\b", item["context"])
        assert item["target"].startswith(" ") and item["context"] == item["context"].rstrip()
    for item in items["copy"]:
        beginning = item["context"].split(". ")[-1]
        assert item["context"].count(f"{beginning} {item['target']}. ") == 2


def test_choices_differ_and_answers_vary(
    made: tuple[dict[str, Items], Tokenizer, list[str], list[str]],
) -> None:
    items = made[0]["continuation"]
    assert all(len(set(item["choices"])) == 4 for item in items)
    assert {item["answer"] for item in items} == {0, 1, 2, 3}


@pytest.mark.parametrize("sequence_length", [64, 128])
def test_items_fit_the_sequence_length(tmp_path: Path, sequence_length: int) -> None:
    items, tokenizer, _, _ = heldout_of(
        tmp_path, [plain(i) for i in range(200)], sequence_length=sequence_length
    )
    passages = [item["context"] + item["target"] for item in items["cloze"] + items["copy"]]
    passages += [item["context"] + c for item in items["continuation"] for c in item["choices"]]
    assert passages
    assert max(len(tokenizer.encode(passage).ids) for passage in passages) < sequence_length


def test_order_of_the_corpus_does_not_matter(tmp_path: Path) -> None:
    texts = [plain(i) for i in range(120)]
    forward = heldout_of(tmp_path / "a", texts)[0]
    backward = heldout_of(tmp_path / "b", texts[::-1])[0]
    assert forward["perplexity"] == backward["perplexity"]


@pytest.mark.parametrize(
    "texts",
    [
        ["alpha", "beta", "gamma", "delta"],
        ["\u6211\u4eec\u4eca\u5929\u53bb\u5b66\u6821\u3002" * i for i in range(1, 9)],
        [f"{i} = {i}; {{}} <{i}>\n\t...!?" for i in range(40)],
    ],
    ids=["words", "no spaces", "symbols"],
)
def test_unsuitable_corpus_gets_fewer_items_and_says_so(tmp_path: Path, texts: list[str]) -> None:
    items, _, validation, reports = heldout_of(tmp_path, texts)
    assert len(items["perplexity"]) == min(len(validation), 40)
    assert items["copy"] == [] and items["continuation"] == []
    assert any(report.startswith("held-out task copy: 0 items instead of 24") for report in reports)


def test_prepare_writes_them(prepared: tuple[Path, DataManifest]) -> None:
    data_dir, manifest = prepared
    assert {path.stem for path in (data_dir / "evaluation").iterdir()} == set(NAMES)
    count = len(read_items(data_dir / "evaluation" / "perplexity.jsonl"))
    assert count == min(manifest.validation.documents, 40)
