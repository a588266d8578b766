"""Scoring of tasks that run the model's code, hostile code included; targets that cannot be scored."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from evaluation_setup import prepare_evaluation, stage_command, write_heldout
from test_sandbox import FORGE, needs_namespaces

from configs.errors import EvaluationError
from configs.rundir import EvaluationDir, RunDir
from configs.schema import EvaluateConfig
from tasks.evaluate import score_target
from tasks.evaluate.plan import read_plan
from tasks.evaluate.sandbox import Limits
from tasks.evaluate.score import score
from tasks.evaluate.score_code import Confined, packed, unpacked

TASK = """
task: NAME
unsafe_code: CODE
dataset_path: json
dataset_kwargs: {data_files: {test: copy.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: context
doc_to_target: target
generation_kwargs: {until: ["\\n"], max_gen_toks: 2}
process_results: !function functions.FUNCTION
metric_list:
  - {metric: passed, aggregation: mean, higher_is_better: true}
  - {metric: clean, aggregation: mean, higher_is_better: true}
"""
FUNCTIONS = """
import os
import pathlib
import time

STARTED_WITH = pathlib.Path("/proc/self/environ").read_text()


def run(doc, results):
    given = {}
    if results[0].startswith(("passed", "import", "while", "given")):
        exec(results[0], given)
    if given.get("nothing"):
        return {}
    secret = "hidden" in STARTED_WITH or "SECRET" in os.environ or "HF_TOKEN" in os.environ
    return {"passed": float(given.get("passed", 0.0)), "clean": float(not secret)}


def bad(doc, results):
    raise ValueError("of the task")


def wait(doc, results):
    pathlib.Path(os.environ["STARTED"]).write_text(str(os.getpid()))
    time.sleep(600)
"""
ANSWERS = [
    "passed = 1",
    FORGE,
    "while True: pass",
    "import os; os._exit(0)",
    "given = 0; nothing = True",
    "passed = 1",
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> RunDir:
    """A run whose evaluation of three tasks has its responses: one runs code, one cannot be scored."""
    from tasks.evaluate.infer import infer

    run = RunDir(tmp_path_factory.mktemp("code") / "run")
    write_heldout(run.heldout_dir, count=len(ANSWERS))
    for name, code, function in (
        ("code", "true", "run"),
        ("bad", "false", "bad"),
        ("waiting", "false", "wait"),
    ):
        text = TASK.replace("NAME", name).replace("CODE", code).replace("FUNCTION", function)
        (run.heldout_dir / f"{name}.yaml").write_text(text)
    (run.heldout_dir / "functions.py").write_text(FUNCTIONS)
    evaluation = prepare_evaluation(
        run, tiny_model, tasks=["code", "bad", "waiting"], task_dirs=[run.heldout_dir]
    )
    infer(evaluation, run.heldout_dir)
    for path in evaluation.responses_dir.glob("code*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["response"] = ANSWERS[row["key"][1]]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


@pytest.fixture
def evaluation(made: RunDir, tmp_path: Path) -> EvaluationDir:
    """A copy, to change."""
    shutil.copytree(made.path, tmp_path / "run")
    return RunDir(tmp_path / "run").evaluation(made.evaluations()[0].step)


def without(evaluation: EvaluationDir, *targets: str) -> None:
    """Have the plan ask for other targets only."""
    plan = json.loads(evaluation.plan_path.read_text())
    for task in plan["tasks"]:
        if task["task"] in targets:
            for shard in task["shards"]:
                (evaluation.responses_dir / f"{shard['name']}.jsonl").unlink()
    plan["targets"] = [name for name in plan["targets"] if name not in targets]
    plan["tasks"] = [task for task in plan["tasks"] if task["task"] not in targets]
    evaluation.plan_path.write_text(json.dumps(plan))


def configure(evaluation: EvaluationDir, **values: object) -> None:
    config = json.loads(evaluation.config_path.read_text()) | values
    evaluation.config_path.write_text(EvaluateConfig(**config).model_dump_json())


@needs_namespaces
def test_each_answer_decides_on_its_own_score_only_and_a_bad_task_on_none(
    evaluation: EvaluationDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hidden-1")
    monkeypatch.setenv("SECRET", "hidden-2")
    without(evaluation, "waiting")
    configure(evaluation, code_timeout_s=5.0)
    record = score(evaluation)
    found = {(row.task, row.metric): (row.value, row.samples) for row in record.scores}
    assert found == {
        ("code", "passed,none"): (2 / len(ANSWERS), len(ANSWERS)),
        ("code", "clean,none"): (1.0, len(ANSWERS)),
    }
    assert list(record.failed) == ["bad"]
    assert "'bad' cannot be scored: ValueError: of the task" in record.failed["bad"]
    assert evaluation.scores() == record


def test_without_a_sandbox_code_is_not_scored_unless_the_config_allows(
    evaluation: EvaluationDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without(evaluation, "waiting", "bad")
    configure(evaluation, code_timeout_s=5.0)
    # As if the kernel granted no namespaces.
    patch = "from tasks.evaluate import sandbox_kernel\nsandbox_kernel.unshare = lambda: False\n"
    (tmp_path / "sitecustomize.py").write_text(patch)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[3]}")
    with pytest.raises(EvaluationError, match=r"set evaluate\.code_sandbox to best_effort"):
        score(evaluation)
    assert not evaluation.scores_path.exists()
    configure(evaluation, code_sandbox="best_effort")
    values = {row.metric: row.value for row in score(evaluation).scores}
    assert values == {"passed,none": 2 / len(ANSWERS), "clean,none": 1.0}


def test_who_scores_ends_with_the_scorer(evaluation: EvaluationDir, tmp_path: Path) -> None:
    without(evaluation, "code", "bad")
    started = tmp_path / "started"
    run = RunDir(evaluation.path.parent.parent)
    argv = stage_command("score", run)
    argv[-1] = str(evaluation.step)
    environment = os.environ | {"STARTED": str(started)}
    process = subprocess.Popen(argv, env=environment, cwd=Path(__file__).parents[3])
    while not (started.exists() and started.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    child = os.pidfd_open(int(started.read_text()))
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        assert select.select([child], [], [], 60.0)[0]
    finally:
        os.close(child)


def test_scores_of_an_earlier_plan_are_not_kept(evaluation: EvaluationDir) -> None:
    without(evaluation, "waiting", "code")
    plan = read_plan(evaluation)

    def planned_anew(_: object) -> None:
        other = plan.model_copy(update={"bootstrap_iterations": 7})
        evaluation.plan_path.write_text(other.model_dump_json())

    with pytest.raises(EvaluationError, match="the plan was made anew"):
        score_target.score_target(evaluation, plan, "bad", planned_anew)
    assert not score_target.target_path(evaluation, plan, "bad").exists()


@needs_namespaces
def test_a_slow_task_is_given_time_to_score_an_empty_answer() -> None:
    def slow_without_answer(document: object, results: list[str]) -> dict[str, float]:
        time.sleep(1.5 if results == [""] else 60.0)
        return {"passed": 0.0}

    limits = Limits(memory_bytes=1 << 28, time_s=0.5)
    scorer = Confined("slow", slow_without_answer, {"passed"}, limits, required=True)
    assert scorer({}, ["passed = 1"]) == {"passed": 0.0}


def test_metrics_come_out_as_they_were() -> None:
    import numpy as np

    value = {"a": (1, 2.5), "b": [True, None, "x"], "c": np.float32(0.1), "d": {"e": np.int64(3)}}
    again = unpacked(json.loads(json.dumps(packed(value))))
    assert again == value
    assert [type(again["a"]), type(again["c"])] == [tuple, np.float32]
    for wrong in (["numpy", ["O", 1]], ["plain", {}], 3, ["x", 1], ["dict", [1]]):
        with pytest.raises(EvaluationError, match="its metrics are damaged"):
            unpacked(wrong)
