"""The tokenizer of a run: a byte-level BPE trained on the train split, or one that the user gives.

    FOLDER/tokenizer.json           Hugging Face `tokenizers` format
    FOLDER/tokenizer_config.json    what AutoTokenizer.from_pretrained needs beside it

Both files go into every exported model as they are. The text is data: an end-of-text token spelt out
in it is encoded as plain text, and no begin-of-text or other template token is added to documents, so
the post-processor of a given tokenizer is dropped and the exported model is prompted as it was trained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from configs.errors import CorpusError
from configs.files import write_json
from configs.schema import TokenizerConfig
from tasks.data.corpus import SHARD_TEXT_BYTES, Split, read_shards

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TRAINING_SHARDS = 2**30 // SHARD_TEXT_BYTES
"""A vocabulary is trained on at most about 1 GiB, in shards spread over the corpus."""
_KNOWN_END_OF_TEXT = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]")
_CHECKED_SHARDS = 16
_CHECKED_DOCUMENTS_PER_SHARD = 64
_CHECKED_CHARACTERS = 5_000
_TOLERATED_SHARE = 0.01


def given_tokenizer_files(path: Path) -> list[Path]:
    """The tokenizer.json that the config's tokenizer path means, and the config beside it if any."""
    path = path.expanduser()
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise CorpusError(f"data.tokenizer.path names {path}, but there is no file {file}")
    config_file = file.with_name(TOKENIZER_CONFIG_FILE)
    return [file, config_file] if config_file.is_file() else [file]


def make_tokenizer(
    config: TokenizerConfig,
    train: Split,
    folder: Path,
    *,
    model_max_length: int,
    report: Callable[[str], None],
) -> tuple[Tokenizer, str]:
    """Train or load the tokenizer, check it against the text, save it; also its end-of-text token."""
    if config.path is None:
        tokenizer, end_of_text = _train(config.vocab_size, train), END_OF_TEXT
        report(f"trained a byte-level BPE tokenizer with {tokenizer.get_vocab_size():,} tokens")
    else:
        tokenizer, end_of_text = _load(config.path)
        _check_match(tokenizer, train, config.path)
        report(f"took the tokenizer {config.path} with {tokenizer.get_vocab_size():,} tokens")
    _save(tokenizer, end_of_text, folder, model_max_length)
    tokenizer.encode_special_tokens = True
    return tokenizer, end_of_text


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Id of a token that the tokenizer has."""
    found: int | None = tokenizer.token_to_id(token)
    assert found is not None
    return found


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Rows that an embedding needs: the highest token id, plus one."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def _train(vocab_size: int, train: Split) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = read_shards(_spread(train.shards, TRAINING_SHARDS))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _load(path: Path) -> tuple[Tokenizer, str]:
    file, *config_files = given_tokenizer_files(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        reason = str(error).splitlines()[0]
        raise CorpusError(f"{file} is no tokenizer in Hugging Face format: {reason}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.post_processor = None
    return tokenizer, _end_of_text_of(tokenizer, file, config_files)


def _end_of_text_of(tokenizer: Tokenizer, file: Path, config_files: list[Path]) -> str:
    """The end-of-text token: what the tokenizer's own config says, or one of the usual names."""
    configured = [token for f in config_files if (token := _configured_end_of_text(f)) is not None]
    candidates = configured or _KNOWN_END_OF_TEXT
    for token in candidates:
        if tokenizer.token_to_id(token) is not None:
            return token
    raise CorpusError(
        f"the tokenizer {file} has no end-of-text token ({', '.join(candidates)}): name it as eos_token in "
        f"a {TOKENIZER_CONFIG_FILE} beside it, or train a tokenizer on the corpus"
    )


def _configured_end_of_text(config_file: Path) -> str | None:
    try:
        token = json.loads(config_file.read_bytes()).get("eos_token")
    except (ValueError, AttributeError) as error:
        raise CorpusError(f"{config_file} is no JSON object: {error}") from error
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _check_match(tokenizer: Tokenizer, train: Split, path: Path) -> None:
    """Refuse a tokenizer that loses the corpus' text."""
    unknown_id = _unknown_id(tokenizer)
    documents = tokens = unknown = changed = 0
    tokenizer.encode_special_tokens = True
    for text in _sample(train):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        documents += 1
        tokens += len(ids)
        unknown += 0 if unknown_id is None else ids.count(unknown_id)
        changed += tokenizer.decode(ids, skip_special_tokens=False) != text
    tokenizer.encode_special_tokens = False
    if tokens == 0:
        reason = "it gives no tokens at all"
    elif unknown > _TOLERATED_SHARE * tokens:
        reason = f"{unknown / tokens:.1%} of the tokens of a sample are unknown"
    elif changed > _TOLERATED_SHARE * documents:
        reason = f"{changed} of {documents} documents of a sample decode to another text"
    else:
        return
    raise CorpusError(
        f"the tokenizer {path} does not match the data: {reason}; give one that covers this text, or leave "
        "data.tokenizer.path out to train one"
    )


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    token = getattr(tokenizer.model, "unk_token", None)
    return None if token is None else tokenizer.token_to_id(token)


def _sample(train: Split) -> Iterator[str]:
    for shard in _spread(train.shards, _CHECKED_SHARDS):
        for text in islice(read_shards([shard]), _CHECKED_DOCUMENTS_PER_SHARD):
            yield text[:_CHECKED_CHARACTERS].rstrip()


def _spread(shards: list[Path], limit: int) -> list[Path]:
    """At most `limit` shards, evenly spaced."""
    stride = -(-len(shards) // limit)
    return shards[::stride]


def _save(tokenizer: Tokenizer, end_of_text: str, folder: Path, model_max_length: int) -> None:
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / TOKENIZER_FILE))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end_of_text,
        "model_max_length": model_max_length,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / TOKENIZER_CONFIG_FILE, config)
