"""What a log's words say of its class: a linear model over words and pairs of words of its kept lines.

Rules know wordings; this knows which words come together. It is fitted to the regression cases by
`python -m tests.tasks.diagnose.fit_words` (logistic regression on binary tf-idf) and is plain numbers
in `word_model.npz`. To ask it takes numpy alone and some milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from io import BytesIO
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

FILE_NAME = "word_model.npz"
_WORD = compile_pattern(r"[a-z_]{2,}")
_MAX_LINE_CHARS = 2000
_MAX_LINES = 5000


@dataclass(frozen=True)
class Likelihood:
    """How likely each class is by the words alone, and which line speaks most for the likeliest."""

    by_class: dict[str, float]
    """Add up to 1."""
    likeliest: str
    line: LogLine


@dataclass(frozen=True)
class WordModel:
    """A fitted model. F features, C classes."""

    classes: list[str]
    index: dict[str, int]
    """Of each feature."""
    rarity: NDArray[np.float32]
    """Inverse document frequencies, F."""
    weights: NDArray[np.float16]
    """C x F."""
    bias: NDArray[np.float32]
    """C."""

    def likelihood(self, lines: Sequence[LogLine]) -> Likelihood | None:
        """What the lines' words say; None where it knows no word of them."""
        lines = lines[:_MAX_LINES]
        of_line = [self._known(line) for line in lines]
        present = np.array(sorted({number for known in of_line for number in known}), dtype=int)
        if not len(present):
            return None
        values = self.rarity[present] / np.linalg.norm(self.rarity[present])
        parts = self.weights[:, present].astype(np.float32) * values
        scores = parts.sum(axis=1) + self.bias
        odds = np.exp(scores - scores.max())
        shares = odds / odds.sum()
        best = int(shares.argmax())
        says = dict(zip(present.tolist(), parts[best].tolist(), strict=True))
        spoken = [sum(says[number] for number in known) for known in of_line]
        line = lines[int(np.argmax(spoken))]
        by_class = dict(zip(self.classes, map(float, shares), strict=True))
        return Likelihood(by_class, self.classes[best], line)

    def _known(self, line: LogLine) -> set[int]:
        return {self.index[word] for word in features([line.body]) if word in self.index}


def features(bodies: Iterable[str]) -> set[str]:
    """The words of some lines, and pairs of words that follow each other in a line; numbers are none."""
    found: set[str] = set()
    for body in dict.fromkeys(bodies):
        words = _WORD.findall(body[:_MAX_LINE_CHARS].lower())
        found.update(words)
        found.update(map(" ".join, pairwise(words)))
    return found


@lru_cache(maxsize=1)
def word_model() -> WordModel:
    """The model that comes with the package."""
    packed = files("tasks.diagnose").joinpath(FILE_NAME).read_bytes()
    with np.load(BytesIO(packed), allow_pickle=False) as stored:
        names = bytes(stored["features"]).decode().split("\n")
        return WordModel(
            classes=bytes(stored["classes"]).decode().split("\n"),
            index={name: number for number, name in enumerate(names)},
            rarity=stored["rarity"],
            weights=stored["weights"],
            bias=stored["bias"],
        )
