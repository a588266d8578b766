"""Past failures with what resolved them: those that come with Overland, and those people confirmed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml

from configs.errors import ConfigError
from configs.files import read_json_lines
from tasks.diagnose.classes import CLASSES, is_class
from tasks.diagnose.redact import redact

CONFIRMED_NAME = "confirmed.jsonl"
_PACKAGED_NAME = "cases.yaml"
_ROOT_MARK = ">> "
_MAX_TEXT_CHARS = 4000


@dataclass(frozen=True)
class Case:
    """A diagnosed failure."""

    id: str
    failure_class: str
    root: str
    """The root cause's line; empty when a person's correction names none."""
    text: str
    """The compressed log, the root's line included. Redacted."""
    resolution: str
    source: Literal["packaged", "confirmed"]

    @property
    def lines(self) -> list[str]:
        """The log's lines."""
        return self.text.splitlines()

    def indexed_text(self) -> str:
        """What is embedded: the root first, the rest, and what its class is called and advised.

        The advice holds words that other logs of the class may use.
        """
        others = (line for line in self.lines if line != self.root)
        words = (self.failure_class, CLASSES[self.failure_class].mitigation)
        return "\n".join((self.root, *others, *words))


@lru_cache(maxsize=1)
def packaged_cases() -> tuple[Case, ...]:
    """The cases that come with Overland."""
    text = files("tasks.diagnose").joinpath(_PACKAGED_NAME).read_text(encoding="utf-8")
    return tuple(_packaged(entry) for entry in yaml.safe_load(text))


def confirmed_cases(path: Path) -> Iterator[Case]:
    """The newest confirmation of each case in a file of JSON lines; malformed ones are left out."""
    newest: dict[str, Case] = {}
    for entry, _ in read_json_lines(path):
        case = _confirmed(entry)
        if case is not None:
            newest[case.id] = case
    yield from newest.values()


def _packaged(entry: dict[str, str]) -> Case:
    if entry["class"] not in CLASSES:
        raise ConfigError(f"case {entry['id']} of {_PACKAGED_NAME}: no class {entry['class']}")
    lines = entry["log"].splitlines()
    roots = [line for line in lines if line.startswith(_ROOT_MARK)]
    if len(roots) > 1 or (not roots and entry["class"] != "NoFailure"):
        raise ConfigError(f"case {entry['id']} of {_PACKAGED_NAME} must mark one root line")
    return Case(
        id=entry["id"],
        failure_class=entry["class"],
        root=roots[0].removeprefix(_ROOT_MARK).strip() if roots else "",
        text="\n".join(line.removeprefix(_ROOT_MARK).strip() for line in lines),
        resolution=entry["resolution"],
        source="packaged",
    )


def _confirmed(entry: dict[str, Any]) -> Case | None:
    """A case that `overland diagnose --confirm` has noted."""
    diagnosis = entry.get("diagnosis")
    failure_class = entry.get("class")
    if not isinstance(diagnosis, dict) or not is_class(failure_class):
        return None
    evidence = diagnosis.get("evidence")
    # A corrected class says that the line which was taken for the root is perhaps none.
    agreed = entry.get("diagnosed_as") == failure_class
    root = str(diagnosis.get("root_cause_text") or "") if agreed else ""
    lines = [
        str(diagnosis.get("root_cause_text") or ""),
        *map(str, evidence if isinstance(evidence, list) else ()),
    ]
    text = redact("\n".join(dict.fromkeys(line for line in lines if line)))[:_MAX_TEXT_CHARS]
    if not text:
        return None
    resolution = str(entry.get("resolution") or CLASSES[failure_class].mitigation)
    identity = str(entry.get("id") or hashlib.sha256(text.encode()).hexdigest()[:12])
    return Case(
        id=identity,
        failure_class=failure_class,
        root=redact(root),
        text=text,
        resolution=redact(resolution),
        source="confirmed",
    )
