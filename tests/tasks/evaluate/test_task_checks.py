"""Mistakes in a user's tasks: all of them are seen at once, by name, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from evaluation_setup import write_user_tasks

from configs.errors import ConfigError
from configs.schema import EvaluateConfig
from tasks.evaluate.task_checks import check_tasks

TASK = """
task: good
dataset_path: json
dataset_kwargs: {data_files: {test: good.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: answer
generation_kwargs: {until: ["\\n"]}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""
DOCUMENTS = '{"question": "1 + 1 =", "answer": "2"}\n{"question": "1 + 2 =", "answer": "3"}\n'


def write_task(folder: Path, changes: str = "", **files: str) -> None:
    """The good task, and `odd`, which includes it and changes something."""
    (folder / "good.yaml").write_text(TASK)
    (folder / "good.jsonl").write_text(DOCUMENTS)
    (folder / "odd.yaml").write_text(f"include: good.yaml\ntask: odd\n{changes}\n")
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def problems(folder: Path, *names: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check_tasks(EvaluateConfig(tasks=list(names), task_dirs=[folder]), of_run=False)
    return str(caught.value).splitlines()


def test_good_tasks_are_good(tmp_path: Path) -> None:
    write_user_tasks(tmp_path)
    write_task(tmp_path)
    asked = ["good", "odd", "shots", "function"]
    (tmp_path / "copy.jsonl").write_text('{"context": "a", "target": "b"}\n')
    check_tasks(EvaluateConfig(tasks=[*asked, "repeats"], task_dirs=[tmp_path]), of_run=False)


@pytest.mark.parametrize(
    ("changes", "module"),
    [
        (
            "doc_to_text: !function own.made",
            "for name in ('made',):\n    globals()[name] = lambda doc: name\n",
        ),
        (
            "doc_to_text: !function own.f\n"
            "filter_list: [{name: f, filter: [{function: mine}]}]\n"
            "metric_list: [{metric: my_metric}]",
            "from lm_eval.api.registry import register_filter, register_metric\n"
            "def f(doc):\n    return ''\n",
        ),
    ],
)
def test_names_that_a_module_makes_when_it_is_run_are_left_to_lm_eval(
    tmp_path: Path, changes: str, module: str
) -> None:
    write_task(tmp_path, changes, own__py=module)
    check_tasks(EvaluateConfig(tasks=["odd"], task_dirs=[tmp_path]), of_run=False)


FILTER = "filter_list: [{name: f, filter: [{function: regex, regex_pattern: '([a'}]}]"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("metric_list: [{metric: exact_matc}]", "metric 'exact_matc' is not installed"),
        (
            "metric_list: [{metric: exact_match, aggregation: meen}]",
            "aggregation 'meen' of metric 'exact_match' is unknown to lm-eval: did you mean mean",
        ),
        (
            "metric_list: [{metric: own}]\nprocess_results: !function helper.score",
            "metric 'own' says no aggregation",
        ),
        ("metric_list: [{aggregation: mean}]", "an entry of metric_list has no metric"),
        (FILTER, "filter 'f' has regex_pattern '([a', which is none: unterminated character set"),
        (
            "filter_list: [{name: f, filter: [{function: rgex}]}]",
            "filter 'f' has function 'rgex', which lm-eval does not know: did you mean regex",
        ),
        ("filter_list: [{function: regex}]", "an entry of filter_list is not {name: ..., filter"),
        (
            "test_split: tset",
            "test_split 'tset' is no split of dataset_kwargs.data_files: did you mean test",
        ),
        ("test_split: [test]", "test_split ['test'] is no split of"),
        ("metric_list: [{metric: exact_match, aggregation: [mean]}]", "aggregation ['mean'] of"),
        ("metric_list: [{metric: [acc]}]", "an entry of metric_list has no metric"),
        ("filter_list: [{name: f, filter: [{function: [a]}]}]", "has function ['a'], which"),
        ("fewshot_split: train", "fewshot_split 'train' is no split of"),
        ("test_split: null", "it has neither test_split nor validation_split"),
        ("dataset_kwargs: null", "no file is named: add dataset_kwargs"),
        ("doc_to_text: !function absent.f", "doc_to_text: !function absent.f cannot be imported"),
        ("doc_to_text: !function f", "!function f names no module"),
        ("doc_to_text: !function helper.scor", "helper.py has no scor; did you mean score"),
        ("doc_to_text: !function broken.f", "broken.py, line 2, is no Python: "),
        ("doc_to_text: !function needs.f", "needs.py, line 1, imports no_such_package_here"),
        ("metrics_list: []", "metrics_list is nothing that lm-eval knows of a task: did you mean"),
        ("output_type: generate", "output_type 'generate' is none: did you mean generate_until"),
        ("output_type: multiple_choice", "needs doc_to_choice"),
        ("doc_to_target: null", "doc_to_target is missing: give it a column, a template or"),
        (
            "output_type: multiple_choice\ndoc_to_choice: towns\nmetric_list: [{metric: acc}]",
            "doc_to_choice 'towns' is a column that no document has, and no list: they have answer",
        ),
        ("doc_to_text: '{{question'", "doc_to_text is no template: "),
        (
            "doc_to_text: '{{context}}'",
            "doc_to_text asks for context, which no document has: they have answer, question",
        ),
        ("dataset_kwargs: {data_files: {test: a.jsonl}}", "a.jsonl has no documents"),
        ("dataset_kwargs: {data_files: {test: b.jsonl}}", "b.jsonl, line 3 is no JSON (Expecting"),
        ("dataset_kwargs: {data_files: {test: c.jsonl}}", "c.jsonl, line 2 is no JSON object"),
        ("dataset_kwargs: {data_files: {test: d.json}}", "d.json has no documents: its list"),
        ("dataset_kwargs: {data_files: {test: e.jsonl}}", "data file "),
    ],
)
def test_each_mistake_is_named_with_its_file(tmp_path: Path, changes: str, words: str) -> None:
    write_task(
        tmp_path,
        changes,
        helper__py="try:\n    import no_such_package_here\nexcept ImportError:\n    pass\n"
        "def score(doc, results):\n    return {}\n",
        broken__py="def f(doc):\nreturn doc\n",
        needs__py="import no_such_package_here\ndef f(doc):\n    return doc\n",
        a__jsonl="\n",
        b__jsonl='{"question": "a"}\n\n{"question": \n',
        c__jsonl='{"question": "a"}\n[1]\n',
        d__json="[]",
    )
    (problem,) = problems(tmp_path, "odd", "good")
    assert problem.startswith(f"evaluation task 'odd' ({tmp_path / 'odd.yaml'}): ")
    assert words in problem


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    write_task(tmp_path, f"{FILTER}\ntest_split: tset", bad__yaml="task: bad\ntest_split: [\n")
    (tmp_path / "good.jsonl").write_text("not JSON\n")
    found = problems(tmp_path, "odd", "nothing_like_it", "bad", "good")
    expected: Sequence[str] = (
        "unknown evaluation task 'nothing_like_it'",
        "evaluation task 'bad': ",
        "test_split 'tset' is no split",
        "good.jsonl, line 1 is no JSON",
        "regex_pattern",
        "'good'",
    )
    assert len(found) == len(expected)
    assert all(words in problem for words, problem in zip(expected, found, strict=True))
    assert f"{tmp_path / 'bad.yaml'} cannot be read: line 3, column 1: " in found[1]


def test_what_a_group_changes_is_not_held_against_its_tasks(tmp_path: Path) -> None:
    write_task(
        tmp_path,
        "test_split: null\ndoc_to_text: '{{absent}}'",
        g__yaml="group: g\ntask: [{task: odd, test_split: test, doc_to_text: question}]\n",
    )
    check_tasks(EvaluateConfig(tasks=["g"], task_dirs=[tmp_path]), of_run=False)
    (tmp_path / "g.yaml").write_text(
        "group: g\ntask: [good]\naggregate_metric_list: [{metric: acc, aggregation: median}]\n"
    )
    (problem,) = problems(tmp_path, "g")
    assert "aggregation 'median' of metric 'acc' is none for a group: mean is" in problem


def test_packed_listed_and_pretty_files_are_left_to_the_library(tmp_path: Path) -> None:
    for text in ('[\n{"question": "a"},\n{"question": "b"}\n]', '{\n"question": ["a"]\n}'):
        write_task(tmp_path)
        (tmp_path / "good.jsonl").write_text(text)
        check_tasks(EvaluateConfig(tasks=["good"], task_dirs=[tmp_path]), of_run=False)
    (tmp_path / "good.jsonl").write_bytes(b"\x1f\x8bpacked")
    check_tasks(EvaluateConfig(tasks=["good"], task_dirs=[tmp_path]), of_run=False)


def test_lm_evals_own_task_is_known_and_needs_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (problem,) = problems(tmp_path, "hellaswag")
    assert "evaluation task 'hellaswag' is one of lm-eval's own (" in problem
    assert "needs data set 'Rowan/hellaswag' from the network" in problem
    assert "heldout" not in problem
    (problem,) = problems(tmp_path, "mmlu_anatomy")
    assert "is one of lm-eval's own (" in problem
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    (problem,) = problems(tmp_path, "hellaswag")
    assert problem.endswith("as a task folder to have it")


def test_a_models_evaluation_is_pointed_at_no_heldout_task(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "heldout_close")
    assert problem.startswith("unknown evaluation task 'heldout_close': no task folder is given")
    assert problems(tmp_path) == ["no task is named: say which, like --tasks a,b,c"]
    write_task(tmp_path)
    (problem,) = problems(tmp_path, "heldout_close")
    assert problem.endswith("known are good, odd")
    (problem,) = problems(tmp_path, "heldout_cloze")
    assert "asks about text that a run has held out" in problem


def test_what_is_like_a_known_name_carries_no_other_files_mistake(tmp_path: Path) -> None:
    write_task(tmp_path, bad__yaml="task: bad\ntest_split: [\n")
    assert problems(tmp_path, "goood") == [
        "unknown evaluation task 'goood': did you mean good or odd?"
    ]
    (problem,) = problems(tmp_path, "nothing_like_it")
    assert f"{tmp_path / 'bad.yaml'} cannot be read" in problem
