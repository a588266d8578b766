"""What past cases and a language model say about failures as if no rule had known them.

    python tests/tasks/diagnose/measure_models.py http://localhost:8000/v1 MODEL [QUESTIONS]

Serve a GGUF file with `python tests/local_model_server.py FILE 8192`. No test: on two busy cores a model
of 1.5 billion parameters takes minutes a question.
"""

from __future__ import annotations

import csv
import random
import sys
import tempfile
from pathlib import Path

from configs.diagnose_schema import DiagnoseConfig
from infra.language_model import LanguageModel
from tasks.diagnose.compress import compress
from tasks.diagnose.failure_agent import OpenFailure, ask_about_failure
from tasks.diagnose.retrieval import open_cases
from tasks.diagnose.verdicts import make_verdict

CASES = Path(__file__).parent / "cases" / "second"
NO_QUESTION = ("NoFailure", "Unknown", "Hang", "LossSpike")


def picked(count: int) -> list[dict[str, str]]:
    """One failure of each class, in a fixed random order."""
    with open(CASES / "INDEX.tsv", newline="") as file:
        rows = [r for r in csv.DictReader(file, delimiter="\t") if r["class"] not in NO_QUESTION]
    random.Random(4).shuffle(rows)
    firsts: dict[str, dict[str, str]] = {}
    for row in rows:
        firsts.setdefault(row["class"], row)
    return list(firsts.values())[:count]


def main(url: str, name: str, count: int) -> None:
    config = DiagnoseConfig(
        endpoint=url,
        model=name,
        timeout_s=300,
        budget_s=300.0 * count,
        max_questions=count,
        retries=0,
        max_answer_tokens=400,
    )
    unknown = make_verdict("Unknown", method="none", confidence=0.1)
    right = {"nearest": 0, "of three": 0, "model": 0}
    with (
        tempfile.TemporaryDirectory() as folder,
        open_cases(Path(folder)) as store,
        LanguageModel(config) as model,
    ):
        for row in picked(count):
            lines = compress([CASES / row["file"]]).kept
            near = store.nearest("\n".join(line.body for line in lines), 3)
            classes = [neighbour.case.failure_class for neighbour in near]
            verdict = ask_about_failure(
                model, OpenFailure(unknown, lines, near), max_prompt_chars=2500
            )
            right["nearest"] += classes[0] == row["class"]
            right["of three"] += row["class"] in classes
            right["model"] += verdict.failure_class == row["class"]
            print(row["file"], row["class"], classes, verdict.failure_class, verdict.evidence[-1])
    print(name, count, right)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 12)
