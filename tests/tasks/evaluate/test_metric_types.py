"""A metric that is asked for and comes to nothing is said: before the model is loaded, or as a failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from configs.errors import ConfigError
from configs.records import Score
from configs.schema import EvaluateConfig
from tasks.evaluate.enumeration import Target
from tasks.evaluate.score_target import missing_scores
from tasks.evaluate.task_checks import check_tasks

TASK = """
task: t
dataset_path: json
dataset_kwargs: {data_files: {test: t.jsonl}}
test_split: test
doc_to_text: q
doc_to_choice: c
doc_to_target: a
"""
FUNCTIONS = "def f(*_):\n    return {}\ndef acc(*_):\n    return 0.0\n"


def check(folder: Path, values: str) -> None:
    (folder / "t.yaml").write_text(f"{TASK}{values}\n")
    (folder / "t.jsonl").write_text('{"q": "a", "c": ["b", "d"], "a": 0}\n')
    (folder / "own.py").write_text(FUNCTIONS)
    check_tasks(EvaluateConfig(tasks=["t"], task_dirs=[folder]), of_run=False)


@pytest.mark.parametrize(
    ("kind", "metric", "words"),
    [
        ("multiple_choice", "{metric: bleu}", "metric 'bleu' gives no score with output_type mul"),
        ("multiple_choice", "{metric: !function own.f, aggregation: mean}", "metric 'f' gives no"),
        ("loglikelihood", "{metric: acc_norm}", "of which lm-eval has acc, perplexity: take one"),
        ("loglikelihood_rolling", "{metric: perplexity}", "metric 'perplexity' gives no score"),
        ("generate_until", "{metric: acc}", "'acc' does not suit output_type generate_until"),
        ("generate_until", "{metric: perplexity, aggregation: mean}", "'perplexity' does not suit"),
    ],
)
def test_a_metric_of_another_output_type_is_refused(
    tmp_path: Path, kind: str, metric: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(tmp_path, f"output_type: {kind}\nmetric_list: [{{metric: bypass}}, {metric}]")
    (problem,) = str(caught.value).splitlines()
    assert words in problem


@pytest.mark.parametrize(
    ("kind", "metric", "more"),
    [
        ("multiple_choice", "{metric: acc}, {metric: f1}, {metric: likelihood}", ""),
        ("multiple_choice", "{metric: !function own.acc, aggregation: mean}", ""),
        (
            "multiple_choice",
            "{metric: mine, aggregation: mean}",
            "process_results: !function own.f",
        ),
        ("loglikelihood_rolling", "{metric: bits_per_byte}", ""),
        ("generate_until", "{metric: exact_match}, {metric: bleu}, {metric: f1}", ""),
        ("generate_until", "{metric: acc, aggregation: !function own.f}", ""),
        ("generate_until", "{metric: !function own.acc, aggregation: mean}", ""),
    ],
)
def test_a_metric_that_comes_out_is_accepted(
    tmp_path: Path, kind: str, metric: str, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.evaluate.metrics._missing_package", lambda name: None)
    check(tmp_path, f"output_type: {kind}\nmetric_list: [{metric}]\n{more}")


@dataclass
class Loaded:
    """As much of lm-eval's task as is asked."""

    metrics: list[Any]
    OUTPUT_TYPE: str = "multiple_choice"
    config: dict[str, Any] = field(default_factory=dict)

    def get_config(self, key: str) -> Any:
        return {"metric_list": [{"metric": m} for m in self.metrics], **self.config}.get(key)


def said_of(task: Loaded, results: dict[str, Any]) -> str | None:
    scores = [
        Score(task="t", metric=k, value=v, stderr=None, samples=1, higher_is_better=None)
        for k, v in results.items()
        if isinstance(v, float)
    ]
    return missing_scores(Target("t", {"tasks": {"t": task}}), {"t": results}, scores)


def test_a_metric_without_a_score_makes_its_task_fail() -> None:
    said = said_of(Loaded(["acc", "bleu"]), {"acc,none": 1.0, "alias": "t"})
    assert said is not None
    assert said.startswith("evaluation task 't' has no score of metric 'bleu': ")
    assert said.endswith("it has acc")
    own = Loaded(["acc", "mine"], "generate_until", {"process_results": len})
    assert "no score of metric 'mine'" in str(said_of(own, {"acc,none": 1.0}))
    texts = Loaded(["exact_match", "mine"], "generate_until")
    assert "'mine'" in str(said_of(texts, {"exact_match,none": 1.0, "mine,none": [1, 2]}))
    assert said_of(Loaded([]), {"alias": "t"}) == (
        "evaluation task 't' gives no score: see its metric_list"
    )


def test_metrics_with_scores_under_their_own_or_other_names_are_no_failure() -> None:
    assert said_of(Loaded(["acc", "bypass", len]), {"acc,none": 1.0}) is None
    assert said_of(Loaded(["pass_at_k"], "generate_until"), {"pass@1,first": 1.0}) is None
