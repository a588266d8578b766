"""`overland bench diagnose`: the diagnosis of labelled cases beside its peers, in one run.

Peers: the package gpualert, read generously (a label of its counts as each class that it can mean), and
what is at hand everywhere, the last line with an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tasks.diagnose.classes import CLASSES
from tasks.diagnose.diagnose import diagnose_files
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
    results = [_measure("overland", _overland, cases), _measure("last error line", _last, cases)]
    peer = _peer()
    if peer is not None:
        results.insert(1, _measure(_PEER, peer, cases))
    sets = sorted({case.path.parent.name for case in cases})
    return {
        "cases": len(cases),
        "classes": len({case.failure_class for case in cases}),
        "results": results,
        "sets": [_measure(name, _overland, _of_set(cases, name)) for name in sets],
        "missing": [] if peer is not None else [_PEER],
    }


def _of_set(cases: Sequence[LabelledLog], name: str) -> list[LabelledLog]:
    return [case for case in cases if case.path.parent.name == name]


def _measure(
    name: str, answer: Callable[[LabelledLog], Answer], cases: Sequence[LabelledLog]
) -> dict[str, float | int | str]:
    started = time.perf_counter()
    answers = [answer(case) for case in cases]
    seconds = time.perf_counter() - started
    figures: dict[str, float | int | str] = {"name": name, "cases": len(cases)}
    return figures | score(cases, answers) | {"ms_per_case": 1000 * seconds / len(cases)}


def _overland(case: LabelledLog) -> Answer:
    verdict = diagnose_files([case.path])
    return Answer(
        verdict.failure_class, verdict.root_cause_line, verdict.faulty_node, verdict.action
    )


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

    def answer(case: LabelledLog) -> Answer:
        text = case.path.read_text(encoding="utf-8", errors="replace")
        label = parse_errors("", text).partition("\n")[0]
        if not label:
            return _NOTHING
        meant = _MEANINGS.get(label, (_last(case).failure_class,))
        found = case.failure_class if case.failure_class in meant else meant[0]
        lines = enumerate(text.split("\n"), start=1)
        return _answer(found, next((n for n, line in lines if patterns[label].search(line)), None))

    return answer


def _answer(failure_class: str, line: int | None) -> Answer:
    return Answer(failure_class, line, None, CLASSES[failure_class].action)


def _lines(case: LabelledLog) -> list[str]:
    return case.path.read_text(encoding="utf-8", errors="replace").split("\n")
