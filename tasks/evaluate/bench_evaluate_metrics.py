"""Slow metrics of the benchmark's tasks; copied beside their YAML files, so it imports nothing of ours.

Running a program takes the processor; asking a judge only waits, as for a model on another machine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

JUDGE_S = 1.0
"""How long the judge thinks about one answer."""
_PROGRAM_LIMIT_S = 20.0


def run_program(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Run what the model wrote with each test of the document, in a new interpreter each."""
    passed = [_passes(doc["context"] + results[0], test) for test in doc["tests"]]
    return {"passed": sum(passed) / len(passed)}


def _passes(program: str, test: str) -> bool:
    argv = [sys.executable, "-I", "-S", "-c", f"{program}\n{test}\n"]
    try:
        done = subprocess.run(argv, capture_output=True, check=False, timeout=_PROGRAM_LIMIT_S)
    except (subprocess.TimeoutExpired, ValueError):  # ValueError: a zero byte in the program
        return False
    return done.returncode == 0


def ask_judge(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """A stand-in for a remote judge: it takes its time, and counts words that it expects."""
    time.sleep(JUDGE_S)
    words = results[0].lower().split()
    return {"judged": sum(word in words for word in doc["words"]) / len(doc["words"])}
