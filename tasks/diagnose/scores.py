"""How good diagnoses are, by labelled cases: class, root line, node, action, and restarts that do harm."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.errors import InputError
from tasks.diagnose.classes import RESTARTS
from tasks.diagnose.host_names import short_name

INDEX_NAME = "INDEX.tsv"
_COLUMNS = ("file", "class", "root_cause_line", "faulty_node", "action", "note")
_NEAR_LINES = 2
_NOT_SAID = ("", "-")
_ALTERNATIVES = re.compile(r"\balt=([\d,]+)")


@dataclass(frozen=True)
class LabelledLog:
    """One labelled log."""

    path: Path
    failure_class: str
    root_lines: tuple[int, ...]
    """Lines that are as good an answer as each other; empty for none."""
    nodes: tuple[str, ...]
    action: str


@dataclass(frozen=True)
class Answer:
    """What somebody says about it."""

    failure_class: str
    root_line: int | None
    node: str | None
    action: str


def read_cases(folder: Path) -> list[LabelledLog]:
    """The cases of a folder and of those in it, by their INDEX.tsv; InputError when there are none."""
    indexes = sorted(folder.rglob(INDEX_NAME))
    if not indexes:
        raise InputError(f"{folder} holds no labelled cases: there is no {INDEX_NAME} in it")
    cases = [case for index in indexes for case in _read_index(index)]
    if not cases:
        raise InputError(f"{folder} holds no labelled cases: its {INDEX_NAME} has no rows")
    return cases


def _read_index(index: Path) -> list[LabelledLog]:
    try:
        with open(index, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        cases = [_case_of(row, index.parent) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{index} is malformed: each row needs {', '.join(_COLUMNS)}, lines as numbers ({error})"
        ) from error
    missing = next((case.path for case in cases if not case.path.is_file()), None)
    if missing is not None:
        raise InputError(f"{index} names {missing.name}, which is not there")
    return cases


def _case_of(row: dict[str, str], folder: Path) -> LabelledLog:
    match = _ALTERNATIVES.search(row["note"] or "")
    lines = [int(row["root_cause_line"]), *map(int, match[1].split(",") if match else ())]
    nodes = () if row["faulty_node"] in _NOT_SAID else tuple(row["faulty_node"].split("|"))
    return LabelledLog(
        folder / row["file"],
        row["class"],
        tuple(line for line in lines if line > 0),
        tuple(node for node in nodes if node not in _NOT_SAID),
        row["action"],
    )


def score(cases: Sequence[LabelledLog], answers: Sequence[Answer]) -> dict[str, float]:
    """Shares of right answers, each of the cases that it can be told of."""
    pairs = list(zip(cases, answers, strict=True))
    classes = [(case.failure_class, answer.failure_class) for case, answer in pairs]
    lines = [_is_near(answer, case) for case, answer in pairs if case.root_lines]
    nodes = [_is_node(answer, case) for case, answer in pairs if case.nodes]
    harmless = [answer.action for case, answer in pairs if case.action not in RESTARTS]
    return {
        "accuracy": _share([right == said for right, said in classes]),
        "macro_f1": _macro_f1(classes),
        "root_line": _share(lines),
        "node": _share(nodes),
        "action": _share([case.action == answer.action for case, answer in pairs]),
        "wrong_restarts": _share([action in RESTARTS for action in harmless]),
    }


def _macro_f1(classes: Sequence[tuple[str, str]]) -> float:
    """The mean over the classes that occur."""
    right = Counter(truth for truth, said in classes if truth == said)
    truths = Counter(truth for truth, _ in classes)
    said = Counter(said for _, said in classes)
    return sum(2 * right[c] / (truths[c] + said[c]) for c in truths) / max(1, len(truths))


def _is_near(answer: Answer, case: LabelledLog) -> bool:
    line = answer.root_line
    return line is not None and any(abs(line - right) <= _NEAR_LINES for right in case.root_lines)


def _is_node(answer: Answer, case: LabelledLog) -> bool:
    short = short_name((answer.node or "").lower())
    return short in {short_name(node.lower()) for node in case.nodes}


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else float("nan")
