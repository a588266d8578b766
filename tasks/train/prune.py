"""Applies the retention rules in rank 0's writer process, after a commit."""

from __future__ import annotations

from pathlib import Path


def prune(checkpoint: Path, step: int) -> None:
    """Remove the checkpoints that no rule keeps."""
