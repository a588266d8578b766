"""Filter rules: each keeps to its examples, none drops a cause, learnt ones are kept by kind of job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from configs.errors import ConfigError
from tasks.diagnose.bench_log import recorded_lines
from tasks.diagnose.filter_rules import (
    FilterRule,
    JobKind,
    RuleFile,
    parse_rule_file,
    rules_for,
    save_learnt_rules,
    shipped_rules,
)

SHIPPED = shipped_rules().rules
RULE = {
    "id": "heartbeat",
    "kind": "debug",
    "program": "a trainer",
    "pattern": r"^heartbeat \d+$",
    "matches": ["heartbeat 12"],
    "never": ["heartbeat lost"],
}


@pytest.mark.parametrize("rule", SHIPPED, ids=lambda rule: rule.id)
def test_a_rule_drops_its_examples_and_no_others(rule: FilterRule) -> None:
    for line in rule.matches:
        assert rule.drops_line(line), line
    for line in rule.never:
        assert shipped_rules().match(line) is None, line


@pytest.mark.parametrize("cause", recorded_lines()["causes"])
def test_no_rule_drops_a_cause(cause: str) -> None:
    assert shipped_rules().match(cause) is None


def test_a_routine_line_with_a_cause_behind_it_stays() -> None:
    causes = (
        "RuntimeError: boom",
        "Killed",
        "Segmentation fault",
        "Xid 79",
        "loss = nan",
        "timed out",
        "srun: error: n1: task 1: Killed",
        "aborted",
        "CUDA out of memory",
        "exit code 1",
    )
    for rule in SHIPPED:
        for line in rule.matches:
            for cause in causes:
                assert shipped_rules().match(f"{line} {cause}") is None, (rule.id, line)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pattern": r"^heartbeat 12$"}, "digit"),
        ({"pattern": r"(a"}, "RE2"),
        ({"pattern": r"^beat"}, "does not drop its own example"),
        ({"pattern": r"^heartbeat"}, None),
        ({"matches": ["heartbeat error"], "pattern": "^heartbeat"}, "cause words: error"),
        ({"never": ["heartbeat 13"]}, "drops what it must not"),
        ({"never": []}, "never"),
        ({"kind": "whatever"}, "kind"),
        ({"pattern": r"^heartbeat \d{1,3}[0-9]*$"}, None),
    ],
)
def test_a_rule_that_does_not_keep_to_its_examples_is_refused(
    change: dict[str, object], message: str | None
) -> None:
    text = yaml.safe_dump({"revision": "1", "rules": [{**RULE, **change}]})
    if message is None:
        assert len(parse_rule_file(text, "x").rules) == 1
        return
    with pytest.raises(ConfigError, match="x are malformed") as caught:
        parse_rule_file(text, "x")
    assert message in str(caught.value)


def test_an_id_is_used_once() -> None:
    text = yaml.safe_dump({"revision": "1", "rules": [RULE, RULE]})
    with pytest.raises(ConfigError, match="twice: heartbeat"):
        parse_rule_file(text, "x")


def test_the_shipped_file_states_its_version() -> None:
    text = files("tasks.diagnose").joinpath("filter_rules.yaml").read_text()
    file = parse_rule_file(text, "shipped")
    assert file.version == 1
    assert file.revision
    assert all(rule.program for rule in file.rules)


def _rule(**change: object) -> FilterRule:
    return FilterRule.model_validate({**RULE, "learnt": "job 12", **change})


def test_learnt_rules_serve_similar_jobs(tmp_path: Path) -> None:
    megatron = JobKind(framework="megatron-core", name="llama-7b", launcher="slurm")
    path = save_learnt_rules(tmp_path, megatron, [_rule()])
    assert path.name == "megatron-core--llama-7b--slurm.yaml"
    line = "heartbeat 77"
    assert rules_for(None, tmp_path).match(line) is None
    served = {
        "megatron-core llama-7b local": True,
        "Megatron Core llama-13b slurm": True,
        "megatron-core llama-13b local": False,
        "deepspeed llama-7b slurm": False,
    }
    for words, expected in served.items():
        framework, name, launcher = words.rsplit(" ", 2)
        job = JobKind(framework=framework, name=name, launcher=launcher)
        assert (rules_for(job, tmp_path).match(line) is not None) == expected, words


def test_a_file_that_calls_the_runs_name_its_model_is_read(tmp_path: Path) -> None:
    job = JobKind(framework="nemo", name="llama-7b", launcher="slurm")
    path = save_learnt_rules(tmp_path, job, [_rule()])
    path.write_text(path.read_text().replace("name: llama-7b", "model: llama-7b"))
    assert "model: llama-7b" in path.read_text()
    assert parse_rule_file(path.read_text(), str(path)).job == job


def test_saved_rules_are_merged_by_id_and_the_own_kind_wins(tmp_path: Path) -> None:
    job = JobKind(framework="nemo", launcher="slurm")
    save_learnt_rules(tmp_path, job, [_rule(), _rule(id="other")])
    path = save_learnt_rules(tmp_path, job, [_rule(program="a newer trainer")])
    file = parse_rule_file(path.read_text(), str(path))
    assert isinstance(file, RuleFile)
    assert {rule.id: rule.program for rule in file.rules} == {
        "heartbeat": "a newer trainer",
        "other": "a trainer",
    }
    similar = JobKind(framework="nemo", name="x", launcher="slurm")
    save_learnt_rules(tmp_path, similar, [_rule(program="of the similar job")])
    found = rules_for(job, tmp_path).match("heartbeat 1")
    assert found is not None
    assert found.program == "a newer trainer"


def test_a_broken_file_of_learnt_rules_is_named_and_costs_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = JobKind(framework="nemo")
    (tmp_path / "nemo--any--any.yaml").write_text("rules: 3")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    assert rules_for(job, tmp_path).rules == shipped_rules().rules
    assert "nemo--any--any.yaml" in caplog.text and "bytes.yaml" in caplog.text


def test_rules_that_many_learn_at_once_are_all_kept(tmp_path: Path) -> None:
    job = JobKind(framework="nemo")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: save_learnt_rules(tmp_path, job, [_rule(id=f"r{n}")]), range(16)))
    known = {rule.id for rule in rules_for(job, tmp_path).rules}
    assert {f"r{n}" for n in range(16)} <= known
