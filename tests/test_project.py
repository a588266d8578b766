"""What a fresh clone relies on: plain pins, links that lead somewhere, one test command."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_constraints_are_versions_on_the_index() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


def test_ci_runs_the_command_of_the_readme() -> None:
    assert "make test" in (ROOT / "README.md").read_text()
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_documented_failure_classes_are_those_that_exist() -> None:
    from tasks.diagnose.classes import CLASSES

    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index("## Failure classes") :].split("Actions:")[0]
    documented = set(re.findall(r"\b[A-Z][A-Za-z0-9]+\b", table.split("|---|---|")[1]))
    assert documented == set(CLASSES)


def test_test_modules_have_names_of_their_own() -> None:
    """pytest imports them by name alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
