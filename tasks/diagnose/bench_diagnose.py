"""`overland bench diagnose`: what `overland diagnose` answers to labelled cases, beside its peers, in one run.

Peers: the package gpualert, read generously (a label of its counts as each class that it can mean), and
what is at hand everywhere, the last line with an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from configs.diagnose_schema import DiagnoseConfig
from configs.errors import InputError
from tasks.diagnose.answer import answer
from tasks.diagnose.classes import CLASSES
from tasks.diagnose.exception_types import class_of_type
from tasks.diagnose.patterns import compile_pattern
from tasks.diagnose.scores import Answer, LabelledLog, read_cases, score

CASES = Path(__file__).parents[2] / "tests" / "tasks" / "diagnose" / "cases"
_ERROR = compile_pattern(r"\b((?:[a-zA-Z_]\w*\.)*\w*(?:Error|Exception|Interrupt))\b")
_ANY_ERROR = compile_pattern(r"(?i)\b(?:error|fatal|failed|killed|cancelled)\b")
_NOTHING = Answer("NoFailure", None, None, "none")
_PEER = "gpualert"

# Every class that a label of gpualert can mean.
_MEANINGS = {
    "GPU out-of-memory (CUDA OOM)": ("OutOfMemoryError",),
    "NCCL communication error": ("NCCLTimeoutError", "NCCLRemoteError", "NetworkError"),
    "CUDA runtime error": ("CUDAError", "ECCError", "NVLinkError"),
    "System out-of-memory (RAM)": ("OutOfMemoryError", "CgroupOOM"),
    "Segmentation fault": ("RuntimeError",),
    "File not found": ("FileNotFoundError", "ModelLoadingError"),
    "Permission denied": ("PermissionError",),
    "Missing Python module": ("ImportError",),
    "Division by zero": ("ZeroDivisionError",),
    "Tensor device mismatch": ("RuntimeError",),
    "NaN detected in loss": ("LossSpike",),
    "Process killed by OS (OOM)": ("CgroupOOM", "DataloaderKilled"),
    "Assertion failed": ("AssertionError",),
    "Python RuntimeError": ("RuntimeError",),
}


def bench_diagnose(folder: Path | None = None) -> dict[str, Any]:
    """Figures of each on all cases; of Overland on each set of cases too."""
    cases = read_cases(folder or CASES)
    peer = _peer()
    peers = [(_PEER, peer)] if peer is not None else []
    with TemporaryDirectory(prefix="overland-bench-") as store:
        own = _measure("overland", partial(_overland, DiagnoseConfig(store=Path(store))), cases)
    others = [_measure(name, ask, cases) for name, ask in [*peers, ("last error line", _last)]]
    sets = sorted({case.path.parent.name for case in cases})
    return {
        "cases": len(cases),
        "classes": len({case.failure_class for case in cases}),
        "results": [measured.figures() for measured in (own, *others)],
        "sets": [own.of_set(name).figures() for name in sets],
        "missing": [] if peer is not None else [_PEER],
    }


@dataclass(frozen=True)
class _Measured:
    """What one answered to each case, and in how many seconds."""

    name: str
    cases: Sequence[LabelledLog]
    answers: Sequence[Answer]
    seconds: Sequence[float]

    def of_set(self, name: str) -> _Measured:
        """The same of the cases in one folder."""
        at = [n for n, case in enumerate(self.cases) if case.path.parent.name == name]
        cases, answers = [self.cases[n] for n in at], [self.answers[n] for n in at]
        return _Measured(name, cases, answers, [self.seconds[n] for n in at])

    def figures(self) -> dict[str, float | int | str]:
        """As they are printed."""
        told: dict[str, float | int | str] = {"name": self.name, "cases": len(self.cases)}
        ms_per_case = 1000 * sum(self.seconds) / len(self.cases)
        return told | score(self.cases, self.answers) | {"ms_per_case": ms_per_case}


def _measure(
    name: str, ask: Callable[[LabelledLog], Answer], cases: Sequence[LabelledLog]
) -> _Measured:
    answers, seconds = [], []
    for case in cases:
        started = time.perf_counter()
        answers.append(ask(case))
        seconds.append(time.perf_counter() - started)
    return _Measured(name, cases, answers, seconds)


def _overland(settings: DiagnoseConfig, case: LabelledLog) -> Answer:
    """What `overland diagnose` answers, with no confirmed case and no language model."""
    (found,) = answer([str(case.path)], settings)
    if isinstance(found, InputError):
        raise found
    return Answer(found.failure_class, found.root_cause_line, found.faulty_node, found.action)


def _last(case: LabelledLog) -> Answer:
    """The class of the last exception named; Unknown when only the word error is there."""
    for number, text in reversed(list(enumerate(_lines(case), start=1))):
        if match := _ERROR.search(text):
            return _answer(class_of_type(match[1]), number)
        if _ANY_ERROR.search(text):
            return _answer("Unknown", number)
    return _NOTHING


def _peer() -> Callable[[LabelledLog], Answer] | None:
    """gpualert's answer, when it is installed."""
    try:
        from gpualert.parse_errors import ERROR_PATTERNS, parse_errors
    except ImportError:
        return None
    patterns = {label: compile_pattern(f"(?i){pattern}") for pattern, label, _ in ERROR_PATTERNS}

    def ask(case: LabelledLog) -> Answer:
        text = case.path.read_text(encoding="utf-8", errors="replace")
        label = parse_errors("", text).partition("\n")[0]
        if not label:
            return _NOTHING
        meant = _MEANINGS.get(label, (_last(case).failure_class,))
        found = case.failure_class if case.failure_class in meant else meant[0]
        lines = enumerate(text.split("\n"), start=1)
        return _answer(found, next((n for n, line in lines if patterns[label].search(line)), None))

    return ask


def _answer(failure_class: str, line: int | None) -> Answer:
    return Answer(failure_class, line, None, CLASSES[failure_class].action)


def _lines(case: LabelledLog) -> list[str]:
    return case.path.read_text(encoding="utf-8", errors="replace").split("\n")
