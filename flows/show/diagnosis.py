"""What `overland diagnose` prints for people: the verdict, the lines that it rests on, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from flows.show.layout import print_facts, section
from flows.show.words import clean, plural
from tasks.diagnose.answer import Diagnosis

_STYLES = {"none": "bold green", "scheduler": "bold yellow", "anomaly": "bold yellow"}
_FAILED = "bold red"
_MAX_CHARS = 4000
"""Of one printed line: names of files and models' advice may hold anything."""
_TAIL_CHARS = 100
"""Of the root cause's line, which a quote of it ends in too, however long the line is."""
_DID_NOT_FAIL = "NoFailure"


def print_diagnosis(found: Diagnosis, console: Console) -> None:
    """Print one diagnosis."""
    style = _STYLES.get(found.category, _FAILED)
    section(found.failure_class, console, more=_kind(found), style=style)
    facts = [("file", clean(found.file, _MAX_CHARS))]
    if found.root_cause_line is not None:
        facts.append((f"line {found.root_cause_line}", clean(found.root_cause_text, _MAX_CHARS)))
    if found.faulty_rank is not None:
        facts.append(("rank", str(found.faulty_rank)))
    if found.faulty_node is not None:
        facts.append(("node", clean(found.faulty_node)))
    what = "nothing" if found.action == "none" else found.action
    facts.append(("do", clean(f"{what}. {found.mitigation}", _MAX_CHARS)))
    of_files = f" of {found.files:,} files" if found.files > 1 else ""
    facts.append(
        (
            "by",
            f"{found.method}, confidence {found.confidence:.2f}, {plural(found.lines, 'line')}{of_files} read; "
            f"id {found.case_id}",
        )
    )
    print_facts(facts, console)
    seen = [line for line in found.evidence if not _is_root(line, found)]
    if seen:
        console.print(Text("also", "dim"))
    for line in seen:
        console.print(Text(f"  {clean(line, _MAX_CHARS)}"), soft_wrap=True)


def print_folder(name: str, logs: int) -> None:
    """Say that a directory's logs are not taken for one job's."""
    typer.echo(
        f"{clean(name, _MAX_CHARS)} is read as {logs:,} unrelated logs, each with a verdict of its own: no names of ranks or "
        "nodes make them one job's"
    )


def print_confirmed(case: Mapping[str, Any]) -> None:
    """Say what was learnt."""
    before = case["diagnosed_as"]
    changed = "" if before == case["class"] else f" (it was diagnosed as {before})"
    typer.echo(f"{case['id']} is {case['class']}{changed}: kept as a case")


def _kind(found: Diagnosis) -> str:
    if found.category == "none":
        return (
            "the job did not fail" if found.failure_class == _DID_NOT_FAIL else "no rule knows this"
        )
    return f"{found.category} failure"


def _is_root(line: str, found: Diagnosis) -> bool:
    return found.root_cause_text != "" and line.endswith(found.root_cause_text[-_TAIL_CHARS:])
