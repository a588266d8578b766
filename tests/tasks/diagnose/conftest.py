"""Folders of their own for what a diagnosis learns."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERLAND_CASES", str(tmp_path))
    return tmp_path
