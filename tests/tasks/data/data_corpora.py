"""English-like documents and configs over them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from configs.schema import RunConfig

WORDS = [
    "river",
    "garden",
    "winter",
    "teacher",
    "engine",
    "bridge",
    "village",
    "letter",
    "market",
    "window",
    "captain",
    "orchard",
    "history",
    "morning",
    "silver",
    "mountain",
    "harbour",
    "kitchen",
    "journey",
    "lantern",
    "question",
    "weather",
    "machine",
    "meadow",
]
NUM_DOCUMENTS = 200


def english_document(number: int) -> str:
    """Five sentences; the last word of the last one stands in the first."""
    generator = random.Random(number)
    topic = generator.choice(WORDS)
    sentences = [f"Document {number} tells about the old {topic} of the valley."]
    for _ in range(3):
        one, two, three = generator.sample(WORDS, 3)
        sentences.append(f"Every {one} needs a {two} and the {three} of a friend.")
    sentences.append(f"Nobody who came here ever forgot the {topic}.")
    return " ".join(sentences)


def write_jsonl(path: Path, texts: list[str], field: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def make_config(*paths: Path | str, sequence_length: int = 64, **data: Any) -> RunConfig:
    """A run over the paths; `data` overrides its data section."""
    section = {
        "paths": [str(path) for path in paths],
        "tokenizer": {"vocab_size": 400},
        "validation_fraction": 0.1,
    } | data
    model = {"sequence_length": sequence_length}
    return RunConfig.model_validate({"data": section, "model": model, "seed": 7})
