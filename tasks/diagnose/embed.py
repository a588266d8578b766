"""Turns log text into vectors whose angle says how alike two failures are worded.

The built-in embedding needs no model and no download: word and letter n-grams are hashed, weighted by
how rare they are among the packaged cases, and projected at random (with a fixed seed) to a few
thousand numbers. On short log texts it finds the right class more often than a general sentence
model does (docs/language-model.md has the figures). A sentence model can be given all the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from configs.errors import ConfigError

Vectors = NDArray[np.float32]

_DIMENSION = 2048
_HASHED_FEATURES = 1 << 16
_NONZERO_PER_FEATURE = 4
_SEED = 7
_MAX_CHARS = 8000
_MODEL_TOKENS = 256
_WORD = r"(?u)\b\w+\b"

_CAMEL = re.compile(r"([a-z])([A-Z])")
_MASKS = (
    (re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b"), "<hex>"),
    (re.compile(r"(?:/[\w.+@-]{1,200}){2,50}"), lambda match: "/" + match[0].rpartition("/")[2]),
    (re.compile(r"\d+(?:\.\d+)*"), "<n>"),
)


class Embedding(Protocol):
    """Text to unit vectors."""

    name: str
    """Names the method, its version and what it was fitted to: vectors of another are no use."""
    dimension: int

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row for each text, of length 1 (of length 0 for a text without words)."""


def normalise(text: str) -> str:
    """Text without what differs from run to run: numbers, addresses, folders; in lower case."""
    text = _CAMEL.sub(r"\1 \2", text[:_MAX_CHARS])
    for pattern, placeholder in _MASKS:
        text = pattern.sub(placeholder, text)
    return text.lower()


class HashedNgrams:
    """The built-in embedding. `corpus` gives the weights of words; it is short."""

    dimension = _DIMENSION

    def __init__(self, corpus: Sequence[str]) -> None:
        # Imported here: it takes a second, and most diagnoses need no retrieval.
        import sklearn
        from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
        from sklearn.random_projection import SparseRandomProjection

        shared = {"n_features": _HASHED_FEATURES, "alternate_sign": False, "norm": None}
        self._counters = [
            HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), **shared),
            HashingVectorizer(ngram_range=(1, 2), token_pattern=_WORD, **shared),
        ]
        texts = [normalise(text) for text in corpus]
        self._weights = [
            TfidfTransformer(sublinear_tf=True).fit(counter.transform(texts))
            for counter in self._counters
        ]
        projection = SparseRandomProjection(
            _DIMENSION,
            density=_NONZERO_PER_FEATURE / _DIMENSION,
            dense_output=True,
            random_state=_SEED,
        )
        self._projection = projection.fit(np.zeros((1, 2 * _HASHED_FEATURES)))
        digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
        self.name = f"hashed-ngrams/1/{_DIMENSION}/sklearn-{sklearn.__version__}/{digest}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See Embedding."""
        from scipy.sparse import hstack

        cleaned = [normalise(text) for text in texts]
        if not cleaned:
            return np.zeros((0, _DIMENSION), dtype=np.float32)
        pairs = zip(self._counters, self._weights, strict=True)
        features = hstack([w.transform(c.transform(cleaned)) for c, w in pairs]).tocsr()
        return _unit(self._projection.transform(features))


class SentenceModel:
    """A sentence-embedding model in a folder, as Hugging Face writes them: mean of the token states."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model: Any = AutoModel.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32
            )
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"diagnose.embedding_model: {folder} holds no model that transformers can load: {reason}"
            ) from error
        self._model.eval()
        self.dimension = int(self._model.config.hidden_size)
        config = (folder / "config.json").read_bytes()
        weights = [p.stat().st_size for p in sorted(folder.glob("*.safetensors"))]
        digest = hashlib.sha256(config + repr(weights).encode()).hexdigest()[:12]
        self.name = f"sentence-model/1/{folder.name}/{digest}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """See Embedding. One at a time: padding would change the mean."""
        import torch

        rows = []
        for text in texts:
            tokens = self._tokenizer(
                normalise(text), truncation=True, max_length=_MODEL_TOKENS, return_tensors="pt"
            )
            with torch.inference_mode():
                rows.append(self._model(**tokens).last_hidden_state.mean(1)[0].numpy())
        if not rows:
            return np.zeros((0, self.dimension), dtype=np.float32)
        return _unit(np.stack(rows))


def _unit(rows: NDArray[Any]) -> Vectors:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Vectors = (rows / np.where(lengths == 0, 1, lengths)).astype(np.float32)
    return unit
