"""Planning with the real lm-eval: what is rendered, enumerated, left out and refused."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from evaluation_setup import STEP, write_heldout, write_lines, write_user_tasks

from configs.errors import EvaluationError
from configs.rundir import EvaluationDir, RunDir, write_record
from configs.schema import EvaluateConfig
from tasks.evaluate.manifest import read_requests, requests_path
from tasks.evaluate.plan import EvaluationPlan, current_plan, read_plan
from tasks.evaluate.plan_wait import await_plan
from tasks.evaluate.planning import make_plan
from tasks.evaluate.responses import Inferred
from tasks.evaluate.task_files import TaskFileError


def plan_of(run: RunDir, **config: Any) -> EvaluationPlan:
    return make_plan(EvaluateConfig(**config), run.evaluation(STEP), run.heldout_dir)


def test_plan_lists_every_request_and_is_the_same_again(run: RunDir) -> None:
    plan = plan_of(run)
    counts = {task.task: (task.documents, task.requests) for task in plan.tasks}
    assert counts == {
        "heldout_perplexity": (6, 6),
        "heldout_cloze": (6, 6),
        "heldout_continuation": (6, 18),
        "heldout_copy": (6, 6),
    }
    for task in plan.tasks:
        assert [task.shards[0].start, task.shards[-1].stop] == [0, task.requests]
        assert all(a.stop == b.start for a, b in itertools.pairwise(task.shards))
    assert plan == read_plan(run.evaluation(STEP)) == plan_of(run)


def test_hash_covers_what_the_model_is_asked(run: RunDir) -> None:
    (task,) = plan_of(run, tasks=["heldout_cloze"], limit=1).tasks
    document = json.loads((run.heldout_dir / "cloze.jsonl").read_text().splitlines()[0])
    request = ["loglikelihood", [document["context"], document["target"]]]
    text = json.dumps(request, separators=(",", ":"))
    first = hashlib.sha256(text.encode()).digest()
    assert task.requests_sha256 == hashlib.sha256(first).hexdigest()


def test_prompts_of_a_target_do_not_depend_on_the_others(run: RunDir) -> None:
    write_user_tasks(run.heldout_dir)
    alone = plan_of(run, tasks=["suite"], task_dirs=[run.heldout_dir])
    beside = plan_of(run, tasks=["function", "suite"], task_dirs=[run.heldout_dir])
    assert {t.task: t.requests_sha256 for t in alone.tasks}.items() <= {
        t.task: t.requests_sha256 for t in beside.tasks
    }.items()


def test_num_fewshot_overrides_all_but_a_task_s_own_zero(run: RunDir) -> None:
    write_user_tasks(run.heldout_dir)
    dirs = [run.heldout_dir]
    plan = plan_of(run, tasks=["shots", "heldout_cloze"], task_dirs=dirs, num_fewshot=2)
    assert [task.num_fewshot for task in plan.tasks] == [2, 0]


def test_data_files_are_found_beside_their_yaml(tmp_path: Path, run: RunDir) -> None:
    """Also when the file that names them is included from elsewhere, and whatever the folder's name."""
    base, other = tmp_path / "base.v1 [x]", tmp_path / "other"
    write_lines(base / "data" / "a.jsonl", [{"text": "some words"}])
    (base / "base.yaml").write_text(
        "task: base\noutput_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: text\n"
        "dataset_path: json\ndataset_kwargs: {data_files: {test: data/a.jsonl}}\ntest_split: test\n"
        "metric_list: [{metric: bits_per_byte}]\n"
    )
    other.mkdir()
    (other / "derived.yaml").write_text(f"include: {base}/base.yaml\ntask: derived\n")
    plan = plan_of(run, tasks=["derived"], task_dirs=[other])
    assert plan.tasks[0].documents == 1
    (rendered,) = run.evaluation(STEP).tasks_dir.iterdir()
    values = yaml.safe_load(rendered.read_text())
    assert "include" not in values
    assert Path(values["dataset_kwargs"]["cache_dir"]).is_relative_to(run.evaluations_dir)


def test_task_without_documents_is_left_out_with_a_notice(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.heldout_dir / "copy.jsonl").write_text("\n")
    plan = plan_of(run)
    assert "heldout_copy" not in plan.targets
    assert "has no documents" in plan.left_out["heldout_copy"]
    assert "evaluation task heldout_copy is left out" in capsys.readouterr().err


def test_nothing_to_evaluate_is_refused(run: RunDir) -> None:
    (run.heldout_dir / "copy.jsonl").write_text("")
    with pytest.raises(EvaluationError, match="no evaluation task has a document"):
        plan_of(run, tasks=["heldout_copy"])
    assert not run.evaluation(STEP).plan_path.exists()


def test_missing_heldout_file_is_refused(run: RunDir) -> None:
    (run.heldout_dir / "cloze.jsonl").unlink()
    with pytest.raises(EvaluationError, match=r"cloze\.jsonl is missing, which data preparation"):
        plan_of(run)


def test_unknown_task_is_refused_with_the_nearest(run: RunDir) -> None:
    with pytest.raises(EvaluationError, match="did you mean heldout_copy"):
        plan_of(run, tasks=["heldout_kopy"])


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("doc_to_target: '{{ 1 / 0 }}'", "cannot be loaded: ZeroDivisionError"),
        ("num_fewshot: many", "the prompts of evaluation task 'odd' cannot be made: TypeError"),
        ("output_type: nonsense", "output_type 'nonsense' is none"),
        (
            "doc_to_target: !function raising.f",
            r"odd\.yaml: .* cannot be loaded: KeyError: 'no' \(.*/raising\.py, line 2\)",
        ),
    ],
)
def test_task_that_lm_eval_cannot_load_is_refused(run: RunDir, extra: str, message: str) -> None:
    write_user_tasks(run.heldout_dir)
    (run.heldout_dir / "raising.py").write_text("def f(doc):\n    return doc['no']\n")
    text = f"include: shots.yaml\ntask: odd\n{extra}\n"
    (run.heldout_dir / "odd.yaml").write_text(text)
    with pytest.raises(EvaluationError, match=message):
        plan_of(run, tasks=["odd"], task_dirs=[run.heldout_dir])


def test_all_that_lm_eval_refuses_is_told_at_once(run: RunDir) -> None:
    write_user_tasks(run.heldout_dir)
    for name in ("one", "two"):
        text = f"include: shots.yaml\ntask: {name}\ndoc_to_target: '{{{{ 1 / 0 }}}}'\n"
        (run.heldout_dir / f"{name}.yaml").write_text(text)
    with pytest.raises(TaskFileError) as caught:
        plan_of(run, tasks=["one", "heldout_cloze", "two"], task_dirs=[run.heldout_dir])
    first, second = str(caught.value).splitlines()
    assert first.startswith(
        f"{run.heldout_dir / 'one.yaml'}: evaluation task 'one' cannot be loaded"
    )
    assert second.startswith(
        f"{run.heldout_dir / 'two.yaml'}: evaluation task 'two' cannot be loaded"
    )
    assert caught.value.exit_code == 2


def test_plan_is_current_only_for_its_config_and_model(run: RunDir) -> None:
    evaluation = run.evaluation(STEP)
    weights = evaluation.model_dir / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"one")
    plan = plan_of(run)
    assert current_plan(EvaluateConfig(), evaluation) == plan
    assert current_plan(EvaluateConfig(timeout_s=1, every_nth=2), evaluation) == plan
    assert current_plan(EvaluateConfig(limit=3), evaluation) is None
    weights.write_bytes(b"other")
    assert current_plan(EvaluateConfig(), evaluation) is None


def test_new_plan_keeps_what_is_done_of_it_and_puts_the_rest_aside(run: RunDir) -> None:
    """And finds it again when a later plan wants it; with other numbers of workers too."""
    evaluation = run.evaluation(STEP)
    first = plan_of(run, tasks=["heldout_cloze", "heldout_copy"])
    for _, shard in first.shards():
        write_lines(evaluation.responses_dir / f"{shard.name}.jsonl", [])
    cloze, copied = ({shard.name for shard in task.shards} for task in first.tasks)

    def plan_and_look(**config: Any) -> tuple[set[str], set[str]]:
        names = {shard.name for _, shard in plan_of(run, **config).shards()}
        return names, {path.stem for path in evaluation.responses_dir.glob("*.jsonl")}

    assert plan_and_look(tasks=["heldout_cloze"]) == (cloze, cloze)
    names, there = plan_and_look(tasks=["heldout_cloze", "heldout_perplexity"], workers=5)
    assert there == cloze < names
    both = cloze | copied
    assert plan_and_look(tasks=["heldout_copy", "heldout_cloze"], workers=3) == (both, both)
    assert plan_and_look(tasks=["heldout_copy"], batch_size=2)[1] == set()
    write_heldout(run.heldout_dir, count=3)  # the same first three documents, of other random texts
    assert plan_and_look(tasks=["heldout_copy"])[1] == set()


def test_shards_never_cut_a_document_and_hold_one_type(run: RunDir) -> None:
    (task,) = plan_of(run, tasks=["heldout_continuation"], workers=3).tasks
    assert len(task.shards) == 6  # of the more that three workers would like
    rows = [
        read_requests(
            requests_path(run.evaluation(STEP), task.file), shard.start_bytes, shard.stop_bytes
        )
        for shard in task.shards
    ]
    assert [[row.document for row in shard] for shard in rows] == [[n] * 3 for n in range(6)]
    assert {row.request_type for shard in rows for row in shard} == {"loglikelihood"}


def test_a_plan_that_inference_ends_with_and_that_does_not_fit_is_not_waited_for(
    tmp_path: Path,
) -> None:
    evaluation = EvaluationDir(tmp_path, step=0)
    later = Inferred(plan_sha256="", started_at=0.0, ended_at=time.time() + 60.0)
    write_record(evaluation.inferred_path, later)
    with pytest.raises(EvaluationError, match="changed after inference had planned"):
        await_plan(EvaluateConfig(), evaluation)
