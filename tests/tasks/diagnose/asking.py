"""A log that no rule knows, and a question about it to a model behind a real HTTP server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_server import Server

from configs.diagnose_schema import DiagnoseConfig
from configs.records import Verdict
from infra.language_model import LanguageModel
from tasks.diagnose.failure_agent import OpenFailure, ask_about_failure
from tasks.diagnose.learned_rules import RuleBook
from tasks.diagnose.logs import LogLine
from tasks.diagnose.retrieval import Neighbour
from tasks.diagnose.verdicts import make_verdict

ROOT = "lmgrd[77]: checkout of feature SOLVER refused: all licences are in use (-4,132)"
LOG = [
    "step 100 loss 2.31 tokens/s 118034",
    "connecting to licence server with api_key=9f8e7d6c5b4a39281706",
    ROOT,
    "train.py: leaving with code 9",
]
UNKNOWN = make_verdict("Unknown", method="none", confidence=0.1, rank=3)
GOOD = {
    "quotes": [ROOT, "train.py: leaving with code 9"],
    "class": "ConnectionError",
    "category": "infrastructure",
    "at_fault": "infrastructure",
    "mitigation": "Wait until a licence is free, then submit again.",
    "rule": {"pattern": r"checkout of feature \w+ refused", "evidence": ROOT},
}


def lines_of(texts: list[str]) -> list[LogLine]:
    return [LogLine("x.log", number, None, text, text) for number, text in enumerate(texts, 1)]


def ask(
    server: Server,
    folder: Path,
    *,
    log: list[str] = LOG,
    neighbours: list[Neighbour] | None = None,
    timeout_s: float = 20.0,
) -> Verdict:
    config = DiagnoseConfig(endpoint=server.url, model="tester", timeout_s=timeout_s, retries=0)
    with LanguageModel(config) as model:
        failure = OpenFailure(UNKNOWN, lines_of(log), neighbours or [])
        return ask_about_failure(model, failure, book=RuleBook(folder))


def changed(**fields: Any) -> dict[str, Any]:
    return {**GOOD, **fields}
