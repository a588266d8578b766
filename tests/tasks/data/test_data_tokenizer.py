from __future__ import annotations

import json
from pathlib import Path

import pytest
from data_corpora import english_document, write_jsonl
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from configs.errors import CorpusError
from configs.schema import TokenizerConfig
from tasks.data.corpus import Split, build_corpus
from tasks.data.sources import Source
from tasks.data.tokenizer import END_OF_TEXT, make_tokenizer, vocabulary_size

TEXTS = [english_document(i) for i in range(60)] + [
    "Caf\u00e9 \u4f60\u597d\n\n  indented \U0001f600"
]


@pytest.fixture
def train(tmp_path: Path) -> Split:
    file = write_jsonl(tmp_path / "corpus.jsonl", TEXTS)
    source = Source(str(file), file, "jsonl", "text")
    corpus = build_corpus(
        [source], tmp_path / "corpus", validation_fraction=0.01, seed=1, report=lambda message: None
    )
    return corpus.train


def make(train: Split, folder: Path, **config: object) -> tuple[Tokenizer, str]:
    return make_tokenizer(
        TokenizerConfig.model_validate(config),
        train,
        folder,
        model_max_length=64,
        report=lambda message: None,
    )


def message_of(train: Split, folder: Path, path: Path) -> str:
    with pytest.raises(CorpusError) as caught:
        make(train, folder, path=path)
    return str(caught.value)


def _save_byte_level(path: Path, *special: str, prefix_space: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    from tokenizers.decoders import ByteLevel

    tokenizer.decoder = ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=[*special], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer


def test_trained_tokenizer_is_deterministic_and_lossless(tmp_path: Path, train: Split) -> None:
    tokenizer, end_of_text = make(train, tmp_path / "one", vocab_size=300)
    make(train, tmp_path / "two", vocab_size=300)
    one, two = (tmp_path / name / "tokenizer.json" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert vocabulary_size(tokenizer) == 300 and end_of_text == END_OF_TEXT
    for text in [*TEXTS, f"a {END_OF_TEXT} b"]:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert tokenizer.token_to_id(END_OF_TEXT) not in ids


def test_auto_tokenizer_loads_it_beside_a_llama_config(tmp_path: Path, train: Split) -> None:
    folder = tmp_path / "tokenizer"
    tokenizer, _ = make(train, folder, vocab_size=300)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    loaded = AutoTokenizer.from_pretrained(str(folder))
    assert loaded.eos_token == END_OF_TEXT and loaded.model_max_length == 64
    text = TEXTS[-1]
    assert loaded(text)["input_ids"] == tokenizer.encode(text).ids
    assert loaded.decode(loaded(text)["input_ids"]) == text


def test_given_tokenizer_is_taken_as_it_is_without_its_template(
    tmp_path: Path, train: Split
) -> None:
    given = _save_byte_level(tmp_path / "given" / "tokenizer.json", "<s>", "<stop>")
    given.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    given.enable_truncation(4)
    given.save(str(tmp_path / "given" / "tokenizer.json"))
    config = {"eos_token": {"content": "<stop>"}}
    (tmp_path / "given" / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer, end_of_text = make(train, tmp_path / "out", path=tmp_path / "given")
    assert end_of_text == "<stop>"
    ids = tokenizer.encode(TEXTS[0]).ids
    assert len(ids) > 4 and 0 not in ids
    assert AutoTokenizer.from_pretrained(str(tmp_path / "out")).eos_token_id == 1


def test_usual_end_of_text_tokens_are_found(tmp_path: Path, train: Split) -> None:
    _save_byte_level(tmp_path / "t.json", "</s>")
    assert make(train, tmp_path / "out", path=tmp_path / "t.json")[1] == "</s>"


def test_tokenizer_without_end_of_text_is_refused(tmp_path: Path, train: Split) -> None:
    _save_byte_level(tmp_path / "t.json")
    assert "has no end-of-text token (<|endoftext|>," in message_of(
        train, tmp_path / "out", tmp_path / "t.json"
    )


def test_tokenizer_that_changes_the_text_is_refused(tmp_path: Path, train: Split) -> None:
    tokenizer = _save_byte_level(tmp_path / "t.json", END_OF_TEXT)
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save(str(tmp_path / "t.json"))
    message = message_of(train, tmp_path / "out", tmp_path / "t.json")
    assert "does not match the data" in message and "decode to another text" in message


def test_tokenizer_that_does_not_know_the_words_is_refused(tmp_path: Path, train: Split) -> None:
    vocabulary = {END_OF_TEXT: 0, "[UNK]": 1, "the": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "t.json"))
    message = message_of(train, tmp_path / "out", tmp_path / "t.json")
    assert "of the tokens of a sample are unknown" in message


def test_tokenizer_that_gives_nothing_is_refused(tmp_path: Path, train: Split) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={END_OF_TEXT: 0}, merges=[]))
    tokenizer.save(str(tmp_path / "t.json"))
    assert "gives no tokens" in message_of(train, tmp_path / "out", tmp_path / "t.json")


def test_bad_tokenizer_files(tmp_path: Path, train: Split) -> None:
    (tmp_path / "t.json").write_text("{}")
    out = tmp_path / "out"
    assert "is no tokenizer in Hugging Face format" in message_of(train, out, tmp_path / "t.json")
    assert "there is no file" in message_of(train, out, tmp_path / "absent.json")
    assert "tokenizer.json" in message_of(train, out, tmp_path)
    _save_byte_level(tmp_path / "t.json", END_OF_TEXT)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    assert "is no JSON object" in message_of(train, out, tmp_path / "t.json")
