"""Fits the word model to the regression cases: `python -m tests.tasks.diagnose.fit_words`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

import tasks.diagnose
from configs.files import renamed_when_whole
from tasks.diagnose.bench_diagnose import CASES
from tasks.diagnose.compress import compress
from tasks.diagnose.scores import read_cases
from tasks.diagnose.sources import source_of
from tasks.diagnose.word_model import FILE_NAME, features

_CASES_WITH_FEATURE = 3
_INVERSE_REGULARISATION = 30.0
_ITERATIONS = 300


def fit(documents: Sequence[Sequence[str]], classes: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of `word_model.npz`; `documents`: the kept lines of each log."""
    vectorizer = TfidfVectorizer(analyzer=features, binary=True, min_df=_CASES_WITH_FEATURE)
    model = LogisticRegression(C=_INVERSE_REGULARISATION, max_iter=_ITERATIONS)
    model.fit(vectorizer.fit_transform(documents), classes)
    return {
        "features": _packed(vectorizer.get_feature_names_out()),
        "classes": _packed(model.classes_),
        "rarity": vectorizer.idf_.astype(np.float32),
        "weights": model.coef_.astype(np.float16),
        "bias": model.intercept_.astype(np.float32),
    }


def _packed(names: Sequence[str]) -> np.ndarray:
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


def _kept(path: Path) -> list[str]:
    return [line.body for line in compress([source_of(path, path.name)]).kept]


if __name__ == "__main__":
    cases = read_cases(CASES)
    arrays = fit([_kept(case.path) for case in cases], [case.failure_class for case in cases])
    target = Path(tasks.diagnose.__path__[0]) / FILE_NAME
    with renamed_when_whole(target) as file:
        np.savez_compressed(file, **arrays)
    print(f"{target}: {target.stat().st_size:,} bytes, {len(arrays['rarity']):,} features")
