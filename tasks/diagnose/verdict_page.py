"""A verdict as Markdown, for Prefect's page. What logs, rules and models say is data: it forms nothing."""

from __future__ import annotations

import re

from configs.records import Verdict

_MARKUP = re.compile(r"[!-/:-@\[-`{-~]")
"""ASCII's punctuation: a backslash before it takes its meaning, that of links and HTML too."""
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
"""For readers that look for HTML before Markdown."""


def verdict_page(attempt: int, verdict: Verdict) -> str:
    """The page of an attempt's verdict."""
    where = f"{verdict.root_cause_file}:{verdict.root_cause_line}"
    facts = {
        "rank": "-" if verdict.faulty_rank is None else str(verdict.faulty_rank),
        "node": verdict.faulty_node or "-",
        "line": where if verdict.root_cause_file else "-",
        "proposed action": verdict.action,
        "confidence": f"{verdict.confidence:.2f} ({verdict.method})",
    }
    listed = "\n".join(f"- {name}: {plain(text)}" for name, text in facts.items())
    quoted = "\n".join(f"- {plain(line)}" for line in verdict.evidence)
    title = plain(f"Attempt {attempt}: {verdict.failure_class} ({verdict.category})")
    return f"## {title}\n\n{listed}\n\n{plain(verdict.mitigation)}\n\n{quoted}\n"


def plain(text: str) -> str:
    """The text in one line, so that Markdown shows it as it is."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return _MARKUP.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), line)
