"""The table of modules in docs/diagnosis.md is whole."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "diagnosis.md"
MODULES = {path.stem for path in (ROOT / "tasks" / "diagnose").glob("*.py")} - {"__init__"}


def test_each_module_stands_in_the_table_of_questions() -> None:
    table = PAGE.read_text().partition("## Where things are")[2].partition("\n## ")[0]
    named = {name.removesuffix(".py") for name in re.findall(r"`(\w+(?:\.py)?)`", table)}
    assert MODULES - named == set()
    assert named - MODULES == set()
