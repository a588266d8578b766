"""After a node check: where to restart, on how many nodes, and which nodes are left out for good."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from configs.checks import check_config
from configs.errors import RunFailedError
from configs.files import append_json_line
from configs.nodecheck import NodeCheckReport, NodeFailure, NodeResult, NodeState
from configs.nodecheck_schema import NodeCheckConfig
from configs.records import AttemptRecord
from configs.rundir import RunDir, write_record
from configs.schema import RecoveryConfig, RunConfig
from infra.launch.base import JobSpec
from tasks.recover import task
from tasks.recover.fewer_nodes import on_fewer_nodes
from tasks.recover.node_history import count_lemons, lemons, remember
from tasks.recover.nodecheck_files import CheckFiles
from tasks.recover.policy import PastAttempt, decide
from tests.tasks.recover.run_histories import action, verdict

DAY_S = 86_400.0


def report(complete: bool = True, **states: NodeState) -> NodeCheckReport:
    nodes = [NodeResult(node=node, state=state, reason="broke") for node, state in states.items()]
    return NodeCheckReport(complete=complete, nodes=nodes, started_at=0.0, ended_at=1.0)


# --- the decision ---------------------------------------------------------------------------------


def decided(found: Any, check: NodeCheckReport, **settings: object) -> tuple[str, list[str], str]:
    config = RecoveryConfig(node_check=NodeCheckConfig.model_validate(settings))
    past = PastAttempt(1, found, nodes=("a", "b"))
    result = decide([past], config, now=0.0, pool=["a", "b"], check=check)
    return result.kind, result.exclude_nodes, result.reason


TIMEOUT = verdict("NCCLTimeoutError", "restart_same_nodes")
ECC_ON_A = verdict("ECCError", "restart_exclude_node", faulty_node="a")


def test_what_the_check_has_found_is_excluded_whatever_the_logs_name() -> None:
    kind, exclude, reason = decided(TIMEOUT, report(a="good", b="faulty", c="down", d="slow"))
    assert (kind, exclude) == ("restart_exclude_node", ["b", "c"])
    assert reason.endswith("NCCLTimeoutError, without b, c (node check)")
    assert decided(TIMEOUT, report(b="faulty", d="slow"), exclude_slow=True)[1] == ["b", "d"]


def test_a_node_that_the_logs_name_and_the_check_clears_is_used_again() -> None:
    kind, exclude, reason = decided(ECC_ON_A, report(a="good", b="good"))
    assert (kind, exclude) == ("restart_same_nodes", [])
    assert reason.endswith("after a check of 2 nodes found no fault")


@pytest.mark.parametrize(
    "check", [report(a="undecided", b="undecided"), report(False, a="undecided", b="good")]
)
def test_where_the_check_cannot_say_the_logs_do(check: NodeCheckReport) -> None:
    assert decided(ECC_ON_A, check)[:2] == ("restart_exclude_node", ["a"])


def test_a_check_that_did_not_end_is_not_said_to_have_found_no_fault() -> None:
    for check in (report(False, a="undecided", b="undecided"), report(a="good", b="undecided")):
        kind, _, reason = decided(TIMEOUT, check)
        assert kind == "restart_same_nodes"
        assert reason.endswith("the node check did not come to an end")


# --- fewer nodes ----------------------------------------------------------------------------------


def run_config(folder: Path, nodes: int = 4, **changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "run_dir": folder / "run",
        "data": {"paths": ["corpus"]},
        "launcher": {"kind": "slurm", "nodes": nodes, "processes_per_node": 2},
        "parallel": {"tensor": 2, "data": nodes},
        "train": {"global_batch_size": 24, "micro_batch_size": 2},
    }
    return RunConfig.model_validate(values | changes)


@pytest.mark.parametrize(("left", "expected"), [(9, 3), (3, 3), (2, 2), (1, 1), (0, None)])
def test_fewer_nodes_have_fewer_replicas(tmp_path: Path, left: int, expected: int | None) -> None:
    config = run_config(tmp_path)
    fewer = on_fewer_nodes(config, left)
    assert (fewer and fewer.launcher.nodes) == expected
    if fewer is not None:
        check_config(fewer)
        assert fewer.train == config.train
        assert (fewer.parallel.tensor, fewer.parallel.data) == (2, expected)


def test_numbers_that_do_not_fit_the_batch_or_the_model_are_passed_over(tmp_path: Path) -> None:
    odd_batch = run_config(tmp_path, train={"global_batch_size": 16, "micro_batch_size": 2})
    assert on_fewer_nodes(odd_batch, 3).launcher.nodes == 2  # type: ignore[union-attr]
    wide = run_config(tmp_path, parallel={"tensor": 4, "data": 2})
    assert on_fewer_nodes(wide, 3).launcher.nodes == 2  # type: ignore[union-attr]
    whole = run_config(tmp_path, parallel={"tensor": 2, "pipeline": 4, "data": 1})
    assert on_fewer_nodes(whole, 3) is None


# --- the history ----------------------------------------------------------------------------------


def failure(node: str, attempt: int, run: str = "r", days: float = 0.0) -> NodeFailure:
    return NodeFailure(time=days * DAY_S, node=node, run=run, attempt=attempt, cause="test")


def test_a_node_that_failed_twice_within_the_window_is_a_lemon() -> None:
    config = NodeCheckConfig(lemon_failures=2, lemon_window_days=7)
    events = [failure("a", 1), failure("b", 1), failure("a", 2, days=3)]
    assert count_lemons(events, config, now=4 * DAY_S) == ["a"]
    assert count_lemons(events, config, now=7.5 * DAY_S) == []
    events.append(failure("b", 2, days=8))
    assert count_lemons(events, config, now=8 * DAY_S) == []
    assert count_lemons([*events, failure("b", 3, days=9)], config, now=9 * DAY_S) == ["b"]


def test_one_attempt_counts_once(tmp_path: Path) -> None:
    config, run = NodeCheckConfig(), RunDir(tmp_path / "run")
    for _ in range(3):
        remember(run, config, [failure("a", 1)])
    assert lemons(run, config, now=0.0) == []
    remember(run, config, [failure("a", 2)])
    assert lemons(run, config, now=0.0) == ["a"]
    assert len((run.path / "node_history.jsonl").read_text().splitlines()) == 2


def test_runs_of_a_site_share_their_history(tmp_path: Path) -> None:
    config = NodeCheckConfig(history=tmp_path / "site")
    for number in (1, 2):
        run = RunDir(tmp_path / str(number) / "run")
        remember(run, config, [failure("a", 1, run=str(run.path))])
    assert len(list((tmp_path / "site").iterdir())) == 2
    assert lemons(RunDir(tmp_path / "third"), config, now=0.0) == ["a"]
    assert lemons(RunDir(tmp_path / "third"), NodeCheckConfig(), now=0.0) == []


def test_lines_that_are_no_events_are_passed_over(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    append_json_line(tmp_path / "node_history.jsonl", {"what": 1})
    remember(run, NodeCheckConfig(), [failure("a", 1), failure("a", 2)])
    assert lemons(run, NodeCheckConfig(), now=0.0) == ["a"]


# --- before an attempt ----------------------------------------------------------------------------


class Nodes:
    """A launcher that knows its nodes only."""

    def __init__(self, *looks: Sequence[str]) -> None:
        self.looks = list(looks)

    def nodes(self) -> list[str]:
        return list(self.looks.pop(0) if len(self.looks) > 1 else self.looks[0])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    launcher = Nodes("abcd")
    monkeypatch.setattr(task, "make_launcher", lambda _: launcher)
    monkeypatch.setattr(task, "get_run_logger", lambda: logging.getLogger("flow"))
    monkeypatch.setattr(task, "_WAIT_INTERVAL_S", 0.0)
    return launcher


def add_attempt(
    config: RunConfig, *exclude: str, outcome: Any = "failed", decided_at: float | None = None
) -> None:
    run = RunDir(config.resolved_run_dir())
    attempt = run.attempt(len(run.attempts()) + 1)
    record = AttemptRecord(
        number=attempt.number, key="k", job_id="1", submitted_at=0.0, outcome=outcome
    )
    write_record(attempt.record_path, record)
    attempt.config_path.write_text(config.model_dump_json())
    if outcome == "failed":
        excluding = action(decided_at=decided_at or time.time())
        excluding = excluding.model_copy(update={"exclude_nodes": list(exclude)})
        write_record(attempt.action_path, excluding)


def with_settings(config: RunConfig, **settings: object) -> RunConfig:
    recovery = RecoveryConfig(node_check=NodeCheckConfig.model_validate(settings))
    return config.model_copy(update={"recovery": recovery})


def test_without_excluded_nodes_the_scheduler_does_the_waiting(
    tmp_path: Path, cluster: Nodes
) -> None:
    cluster.looks = [""]
    config = run_config(tmp_path)
    assert task.plan_attempt(config) == task.NextAttempt(config)
    add_attempt(config)
    assert task.plan_attempt(config) == task.NextAttempt(config)


def test_with_enough_nodes_left_nothing_changes(tmp_path: Path, cluster: Nodes) -> None:
    config = run_config(tmp_path, nodes=3)
    add_attempt(config, "a")
    assert task.plan_attempt(config).config == config


def test_it_waits_until_there_are_enough(
    tmp_path: Path, cluster: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    config = run_config(tmp_path)
    add_attempt(config, "a")
    cluster.looks = ["abcd", "abcd", "bcde"]
    assert task.plan_attempt(config).config == config
    assert caplog.messages == ["3 of 4 nodes can be used, without a: waiting for others"]


def test_it_does_not_wait_for_ever(tmp_path: Path, cluster: Nodes) -> None:
    config = with_settings(run_config(tmp_path), wait_for_nodes_s=0.0)
    add_attempt(config, "a")
    with pytest.raises(RunFailedError, match=r"3 of 4 nodes .*too_few_nodes=shrink"):
        task.plan_attempt(config)


def test_it_goes_on_with_fewer_where_the_config_allows_it(tmp_path: Path, cluster: Nodes) -> None:
    config = with_settings(run_config(tmp_path), too_few_nodes="shrink")
    add_attempt(config, "a")
    smaller = task.plan_attempt(config).config
    assert (smaller.launcher.nodes, smaller.parallel.data) == (3, 3)
    # A flow that is started again while that attempt runs watches what there is.
    add_attempt(smaller, outcome=None)
    assert task.plan_attempt(config).config.launcher.nodes == 3
    cluster.looks = ["abcdefgh"]
    add_attempt(smaller, "b")
    assert task.plan_attempt(config).config.launcher.nodes == 4


def test_lemons_are_left_out_before_the_first_attempt_of_another_run(
    tmp_path: Path, cluster: Nodes
) -> None:
    site = {"history": tmp_path / "site"}
    for number in (1, 2):
        other = RunDir(tmp_path / f"other-{number}")
        event = failure("b", 1, run=str(other.path)).model_copy(update={"time": 4e9})
        remember(other, NodeCheckConfig.model_validate(site), [event])
    config = with_settings(run_config(tmp_path, nodes=3), **site)
    assert task.plan_attempt(config) == task.NextAttempt(config, ("b",))


def test_what_was_excluded_or_a_lemon_is_used_again_after_the_window(
    tmp_path: Path, cluster: Nodes
) -> None:
    now, config = time.time(), run_config(tmp_path, nodes=2)
    run = RunDir(config.resolved_run_dir())
    add_attempt(config, "a", decided_at=now - 7.1 * DAY_S)
    add_attempt(config, "b", decided_at=now - 6.9 * DAY_S)
    for node, ages in {"c": (7.1, 6.9), "d": (6.9, 0.1)}.items():
        for attempt, age in enumerate(ages, start=1):
            event = failure(node, attempt, str(run.path), days=now / DAY_S - age)
            remember(run, config.recovery.node_check, [event])
    assert task.plan_attempt(config) == task.NextAttempt(config, ("b", "d"))
    longer = with_settings(config, lemon_window_days=8, wait_for_nodes_s=0.0)
    with pytest.raises(RunFailedError, match="0 of 2 nodes can be used, without a, b, c, d"):
        task.plan_attempt(longer)


def test_a_finished_run_that_goes_back_does_without_excluded_nodes(
    tmp_path: Path, cluster: Nodes
) -> None:
    config = run_config(tmp_path)
    add_attempt(config, "b")
    add_attempt(config, outcome="completed")
    assert task.plan_attempt(config) == task.NextAttempt(config, ("b",))


def test_one_machine_has_no_nodes_to_choose_from(tmp_path: Path, cluster: Nodes) -> None:
    cluster.looks = [""]
    config = run_config(tmp_path, launcher={"kind": "local"})
    add_attempt(config, "a")
    assert task.plan_attempt(config) == task.NextAttempt(config)


# --- when there is a check ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure_class", "decision", "changes", "expected"),
    [
        ("ECCError", "restart_exclude_node", {}, True),
        ("NCCLTimeoutError", "restart_same_nodes", {}, True),
        ("S3StorageError", "resubmit_later", {}, False),
        ("KeyError", "fix_by_user", {"category": "script"}, False),
    ],
)
def test_failures_that_may_come_from_a_node_are_checked(
    tmp_path: Path,
    cluster: Nodes,
    monkeypatch: pytest.MonkeyPatch,
    failure_class: str,
    decision: Any,
    changes: dict[str, str],
    expected: bool,
) -> None:
    checked: list[Sequence[str]] = []

    def check(config: RunConfig, folder: Path, nodes: Sequence[str], **_: Any) -> NodeCheckReport:
        checked.append(nodes)
        return report(a="good", b="faulty")

    monkeypatch.setattr(task, "check_nodes", check)
    config = run_config(tmp_path)
    found = verdict(failure_class, decision, faulty_node="a", **changes)
    for name, one in (
        ("plain", config),
        ("off", with_settings(config, enabled=False)),
        ("one node", run_config(tmp_path, nodes=1)),
    ):
        one = one.model_copy(update={"run_dir": tmp_path / name})
        run = RunDir(one.resolved_run_dir())
        record = AttemptRecord(
            number=1, key="k", job_id="1", submitted_at=0.0, outcome="failed", nodes=["a", "b"]
        )
        write_record(run.attempt(1).record_path, record)
        task.check_suspects.fn(one, 1, found)
        assert checked == ([["a", "b"]] if expected and name == "plain" else [])
        checked.clear()
        history = run.path / "node_history.jsonl"
        lines = history.read_text().splitlines() if history.exists() else []
        assert len(lines) == (0 if not expected else 2 if name == "plain" else 1)


def test_no_spare_node_of_a_check_is_one_that_is_left_out(
    tmp_path: Path, cluster: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[JobSpec] = []
    monkeypatch.setattr(cluster, "find", lambda _: None, raising=False)
    monkeypatch.setattr(cluster, "submit", submitted.append, raising=False)

    def start_only(jobs: Any, folder: Path, nodes: Sequence[str], _: Any) -> NodeCheckReport:
        jobs.start(CheckFiles(folder / "try_1"), nodes)
        return report(a="good", b="good")

    monkeypatch.setattr(task, "run_check", start_only)
    config = run_config(tmp_path)
    add_attempt(config, "a", "c")
    run = RunDir(config.resolved_run_dir())
    record = AttemptRecord(
        number=2, key="k", job_id="2", submitted_at=0.0, outcome="failed", nodes=["a", "b"]
    )
    write_record(run.attempt(2).record_path, record)
    task.check_suspects.fn(config, 2, TIMEOUT)
    (spec,) = submitted
    assert (spec.need_nodes, spec.exclude_nodes) == (("a", "b"), ("c",))
