"""Held-out evaluation documents, made of the validation split only.

    FOLDER/perplexity.jsonl      {"text"}
    FOLDER/cloze.jsonl           {"context", "target"}              the next word of a passage
    FOLDER/continuation.jsonl    {"context", "choices", "answer"}   which of 4 sentences comes next
    FOLDER/copy.jsonl            {"context", "target"}              the last word of a repeated phrase

In cloze and continuation the context plus the target or choice is the passage: both begin with their
space. A copy target is the bare word. In cloze the target occurs earlier in the context; in copy the
context holds the whole phrase twice, each time ended by a full stop: the text determines the answer.
Items fit into the training sequence length (at most 128 tokens), copy with room for its answer. A
corpus without suitable documents gets fewer items, or none.

Documents are taken in the order of their hashes: a sample that does not change with the order of the
sources, and little when documents are added.
"""

from __future__ import annotations

import heapq
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from configs.files import write_text
from tasks.data.clean import cut, digest_of
from tasks.data.corpus import Split, read_shards

PERPLEXITY_ITEMS = 40
CLOZE_ITEMS = 60
CONTINUATION_ITEMS = 60
COPY_ITEMS = 24
NUM_CHOICES = 4
MAX_ITEM_TOKENS = 128
COPY_ANSWER_TOKENS = 8
"""Room that a copy item leaves for the generated answer."""

_POOL_DOCUMENTS = 2_000
_DOCUMENT_CHARACTERS = 2_000
_MIN_SENTENCE_WORDS = 4
_MIN_CLOZE_WORDS = 12
_MIN_PHRASE_WORDS = 5
_MAX_PHRASE_WORDS = 10
# After closing punctuation that follows two word characters (not an initial), before no lower case.
_SENTENCE_END = re.compile(r"(?<=[\w)\]\"'][\w)\]\"'])[.!?]+[\"')\]]*\s+(?![a-z])")

Item = dict[str, Any]
CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class _Passages:
    """Documents as lists of paragraphs, each a list of sentences."""

    documents: list[list[list[str]]]
    count_tokens: CountTokens
    max_tokens: int


def write_heldout(
    validation: Split,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    sequence_length: int,
    seed: int,
    report: Callable[[str], None],
) -> None:
    """Write all held-out files."""
    texts = _pool(validation)
    passages = _Passages(
        documents=[[list(_sentences(line)) for line in text.split("\n")] for text in texts],
        count_tokens=lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids),
        max_tokens=min(sequence_length, MAX_ITEM_TOKENS) - 1,
    )
    made: dict[str, tuple[list[Item], int]] = {
        "perplexity": ([{"text": t} for t in texts[:PERPLEXITY_ITEMS]], PERPLEXITY_ITEMS),
        "cloze": (list(islice(_cloze_items(passages), CLOZE_ITEMS)), CLOZE_ITEMS),
        "continuation": (_continuation_items(passages, seed), CONTINUATION_ITEMS),
        "copy": (list(islice(_copy_items(passages), COPY_ITEMS)), COPY_ITEMS),
    }
    for name, (items, wanted) in made.items():
        lines = [json.dumps(item, ensure_ascii=False) + "\n" for item in items]
        write_text(folder / f"{name}.jsonl", "".join(lines))
        if len(items) < wanted:
            report(
                f"held-out task {name}: {len(items)} items instead of {wanted}, as the validation split "
                "has no more suitable documents"
            )


def _pool(validation: Split) -> list[str]:
    """The documents with the lowest hashes, in that order, each cut to a readable length."""
    keyed = ((digest_of(text), _beginning(text)) for text in read_shards(validation.shards))
    return [text for _, text in heapq.nsmallest(_POOL_DOCUMENTS, keyed)]


def _beginning(text: str) -> str:
    return next(cut(text.strip(), _DOCUMENT_CHARACTERS))


def _sentences(line: str) -> Iterator[str]:
    start = 0
    for match in _SENTENCE_END.finditer(line):
        yield line[start : match.end()].strip()
        start = match.end()
    if rest := line[start:].strip():
        yield rest


def _cloze_items(passages: _Passages) -> Iterator[Item]:
    """At most one item a document."""
    for paragraphs in passages.documents:
        items = (_cloze_item(" ".join(sentences), passages) for sentences in paragraphs)
        yield from islice((item for item in items if item), 1)


def _cloze_item(paragraph: str, passages: _Passages) -> Item | None:
    """The paragraph up to its first word, after enough others, that has stood there before.

    Such words are common ones more often than not: a small model too has something to learn.
    """
    words = paragraph.split(" ")
    for end in range(_MIN_CLOZE_WORDS, len(words)):
        if words[end].isalpha() and words[end] in words[:end]:
            context, target = " ".join(words[:end]), f" {words[end]}"
            fits = passages.count_tokens(context + target) <= passages.max_tokens
            return {"context": context, "target": target} if fits else None
    return None


def _continuation_items(passages: _Passages, seed: int) -> list[Item]:
    pairs = list(_sentence_pairs(passages))
    generator = random.Random(seed)  # noqa: S311
    items: list[Item] = []
    for context, true_next in islice(pairs, CONTINUATION_ITEMS):
        others = sorted({text for _, text in pairs if text != true_next})
        if len(others) < NUM_CHOICES - 1:
            return []
        choices = generator.sample(others, NUM_CHOICES - 1)
        answer = generator.randrange(NUM_CHOICES)
        choices.insert(answer, true_next)
        items.append({"context": context, "choices": choices, "answer": answer})
    return items


def _sentence_pairs(passages: _Passages) -> Iterator[tuple[str, str]]:
    """The first sentence and " " + the next, one pair a document; each takes at most half the tokens."""
    half = passages.max_tokens // 2
    for paragraphs in passages.documents:
        first = next((p for p in paragraphs if len(p) > 1), None)
        if first is None:
            continue
        pair = first[0], f" {first[1]}"
        long_enough = all(len(text.split()) >= _MIN_SENTENCE_WORDS for text in pair)
        if long_enough and all(passages.count_tokens(text) <= half for text in pair):
            yield pair


def _copy_items(passages: _Passages) -> Iterator[Item]:
    for paragraphs in passages.documents:
        phrase = _phrase(sentence for sentences in paragraphs for sentence in sentences)
        if phrase is None:
            continue
        beginning, target = phrase.rsplit(" ", 1)
        context = f"{phrase}. {phrase}. {beginning}"
        answer_fits = passages.count_tokens(" " + target) < COPY_ANSWER_TOKENS
        if (
            answer_fits
            and passages.count_tokens(context) + COPY_ANSWER_TOKENS <= passages.max_tokens
        ):
            yield {"context": context, "target": target}


def _phrase(sentences: Iterable[str]) -> str | None:
    """The plain words that a sentence begins with, of the first sentence that has enough of them."""
    for sentence in sentences:
        words = sentence.rstrip(".!?").split(" ")
        plain = list(islice(takewhile(str.isalnum, words), _MAX_PHRASE_WORDS))
        if len(plain) >= _MIN_PHRASE_WORDS:
            return " ".join(plain)
    return None
