"""Finding and checking evaluation tasks before a run starts, without lm-eval."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evaluation_setup import REPOSITORY, write_user_tasks

from configs.errors import ConfigError
from configs.schema import EvaluateConfig
from tasks.evaluate.catalog import build_catalog
from tasks.evaluate.task_checks import check_tasks
from tasks.evaluate.task_files import files_below

PLAIN_TASK = (
    "task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: data.jsonl}}\ntest_split: train\n"
    "doc_to_text: ''\ndoc_to_target: ''\n"
)


def write(folder: Path, **files: str) -> Path:
    """Write NAME.yaml files, and a data file beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.jsonl").write_text("{}\n")
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def check(*tasks: str, dirs: list[Path] | None = None) -> None:
    check_tasks(EvaluateConfig(tasks=list(tasks), task_dirs=dirs or []))


def selected(dirs: list[Path], *names: str) -> list[str]:
    return [entry.name for entry in build_catalog(dirs).reach(names).entries]


def test_own_tasks_are_known_and_checking_them_imports_no_lm_eval() -> None:
    code = (
        "import sys\n"
        "from configs.schema import EvaluateConfig\n"
        "from tasks.evaluate.task_checks import check_tasks\n"
        "check_tasks(EvaluateConfig())\n"
        "print(sorted({'lm_eval', 'torch', 'datasets', 'prefect'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match="unknown evaluation task 'heldout_close': did you mean heldout_cloze"
    ):
        check("heldout_close")


def test_unknown_name_far_from_all_lists_what_is_known() -> None:
    with pytest.raises(ConfigError, match="'qqq': known are heldout_cloze, heldout_continuation"):
        check("qqq")


def test_no_task_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.tasks is empty"):
        check()


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder of lm-eval YAML files"):
        check("heldout_cloze", dirs=[tmp_path / "none"])


def test_groups_and_tags_bring_their_members(tmp_path: Path) -> None:
    write_user_tasks(tmp_path)
    assert selected([tmp_path], "suite") == ["suite", "shots", "heldout_continuation"]
    # `function` includes shots.yaml, and with it the tag.
    assert selected([tmp_path], "everything") == ["function", "shots"]


def test_inline_members_need_no_entry(tmp_path: Path) -> None:
    group = (
        "group: g\ntask:\n  - a\n"
        "  - {task: inline, dataset_path: json}\n"
        "  - {group: inner, task: [b]}\n"
    )
    write(tmp_path, g=group, a=PLAIN_TASK.format(name="a"), b=PLAIN_TASK.format(name="b"))
    assert selected([tmp_path], "g") == ["g", "a", "b"]


def test_unknown_member_names_its_group(tmp_path: Path) -> None:
    write(tmp_path, g="group: g\ntask: [shot]\n", a=PLAIN_TASK.format(name="shots"))
    with pytest.raises(
        ConfigError, match=r"'shot' \(a member of group 'g' in .*: did you mean shots"
    ):
        check("g", dirs=[tmp_path])


def test_group_that_contains_itself_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a="group: a\ntask: [b]\n", b="group: b\ntask: [a]\n")
    with pytest.raises(ConfigError, match="group 'a' contains itself"):
        check("a", dirs=[tmp_path])


@pytest.mark.parametrize("names", [("suite", "shots"), ("shots", "suite"), ("shots", "shots")])
def test_task_that_is_asked_for_twice_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    write_user_tasks(tmp_path)
    with pytest.raises(ConfigError, match="'shots' is asked for twice"):
        check(*names, dirs=[tmp_path])


def test_name_with_two_definitions_is_refused_only_when_it_is_wanted(tmp_path: Path) -> None:
    write(tmp_path / "one", a=PLAIN_TASK.format(name="a"))
    write(tmp_path / "two", a=PLAIN_TASK.format(name="a"), b=PLAIN_TASK.format(name="b"))
    dirs = [tmp_path / "one", tmp_path / "two"]
    check("b", dirs=dirs)
    with pytest.raises(ConfigError, match=r"'a' is defined in .*one/a\.yaml and .*two/a\.yaml"):
        check("a", dirs=dirs)


def test_folders_that_overlap_are_read_once(tmp_path: Path) -> None:
    write(tmp_path / "inner", a=PLAIN_TASK.format(name="a"))
    check("a", dirs=[tmp_path, tmp_path / "inner"])


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("task: [", "while parsing"),
        ("- a\n- b\n", "it is not a YAML mapping"),
        ("include: broken.yaml\n", "it includes itself"),
        ("include: absent.yaml\ntask: x\n", "No such file"),
        ("task: !unknown x\n", "could not determine a constructor"),
    ],
)
def test_unreadable_file_is_told_when_a_name_is_missing(
    tmp_path: Path, broken: str, reason: str
) -> None:
    write(tmp_path, broken=broken, a=PLAIN_TASK.format(name="a"))
    check("a", dirs=[tmp_path])
    with pytest.raises(ConfigError, match=rf"broken.yaml cannot be read: .*{reason}"):
        check("x", dirs=[tmp_path])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            "dataset_path: json\ndataset_kwargs: {data_files: {test: absent.jsonl}}",
            r"data file .*/absent\.jsonl does not exist",
        ),
        ("dataset_path: cais/mmlu", "needs data set 'cais/mmlu' from the network"),
        (
            "dataset_path: json\ndataset_kwargs: {data_files: 'https://example.org/x.jsonl'}",
            r"needs https://example\.org/x\.jsonl from the network",
        ),
        (
            "dataset_path: json\ndataset_kwargs: {data_files: data.jsonl}\n"
            "metric_list: [{metric: rouge, hf_evaluate: true}]",
            "needs metric 'rouge' from the network",
        ),
    ],
)
def test_task_that_cannot_run_here_is_refused(tmp_path: Path, task: str, message: str) -> None:
    write(tmp_path, a=f"task: a\n{task}\n")
    with pytest.raises(ConfigError, match=message):
        check("a", dirs=[tmp_path])


def test_operator_may_allow_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a="task: a\ndataset_path: cais/mmlu\ndoc_to_text: ''\ndoc_to_target: ''\n")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    check("a", dirs=[tmp_path])


@pytest.mark.parametrize("values", [{"dataset_path": "folder"}, {"custom_dataset": "f"}])
def test_local_data_without_files_needs_no_network(tmp_path: Path, values: dict[str, Any]) -> None:
    (tmp_path / "folder").mkdir()
    text = "".join(f"{key}: {value}\n" for key, value in values.items())
    write(tmp_path, a=f"task: a\n{text}doc_to_text: ''\ndoc_to_target: ''\n")
    check("a", dirs=[tmp_path])


@pytest.mark.parametrize("marker", ["evaluation.json", "attempts/x config.yaml"])
def test_evaluations_and_runs_among_the_tasks_are_none_of_them(tmp_path: Path, marker: str) -> None:
    """Their files change while they are evaluated, and hold copies of tasks."""
    (tmp_path / "a.yaml").write_text("task: a\n")
    out = tmp_path / "out"
    (out / "tasks" / "deeper").mkdir(parents=True)
    (out / "tasks" / "000_a.yaml").write_text("task: a\n")
    assert len(list(files_below(tmp_path))) == 2
    for path in map(out.joinpath, marker.split()):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert list(files_below(tmp_path)) == [tmp_path / "a.yaml"]
