"""The verdict on a log that a test writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from configs.records import Verdict
from tasks.diagnose.diagnose import diagnose_files


def verdict_on_text(folder: Path, text: str) -> Verdict:
    """Of one file."""
    path = folder / "job.log"
    path.write_text(text)
    return diagnose_files([path])


def verdict_on(folder: Path, lines: Sequence[str]) -> Verdict:
    """Of one file with these lines."""
    return verdict_on_text(folder, "\n".join(lines) + "\n")
