"""Packs lines of the regression cases into the package: `python -m tests.tasks.diagnose.pack_lines`."""

from __future__ import annotations

import json
from pathlib import Path

import zstandard

import tasks.diagnose
from configs.files import renamed_when_whole
from tasks.diagnose.bench_diagnose import CASES
from tasks.diagnose.logs import read_log
from tasks.diagnose.regression_lines import FILE_NAME
from tasks.diagnose.scores import read_cases

_WHOLE = ("NoFailure", "Unknown")
_LEVEL = 19


def lines_of_cases() -> dict[str, list[str]]:
    """The cases' lines by class: of causes, the root's; where none is known, all."""
    found: dict[str, dict[str, None]] = {}
    for case in read_cases(CASES):
        kept = found.setdefault(case.failure_class, {})
        for line in read_log(case.path):
            if case.failure_class in _WHOLE or line.number in case.root_lines:
                kept.setdefault(line.body.strip())
    return {name: list(found[name]) for name in sorted(found)}


if __name__ == "__main__":
    content = json.dumps(lines_of_cases(), ensure_ascii=False).encode()
    path = Path(tasks.diagnose.__path__[0]) / FILE_NAME
    with renamed_when_whole(path) as file:
        file.write(zstandard.compress(content, _LEVEL))
    print(f"{path}: {path.stat().st_size:,} bytes")
