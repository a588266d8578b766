"""The course of a node check over its files and jobs, with nodes that are played without processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from configs.errors import LaunchError
from configs.nodecheck import NodeAnswer, NodeCheckReport, ProbeSize
from configs.nodecheck_schema import NodeCheckConfig
from tasks.recover import nodecheck_course, nodecheck_run
from tasks.recover.nodecheck import Rules
from tasks.recover.nodecheck_course import Course
from tasks.recover.nodecheck_files import CheckFiles
from tasks.recover.nodecheck_run import JobView, read_report, run_check

NODES = ["a", "b", "c", "d"]
SIZE = ProbeSize(trials=1, matmul_size=8, gather_mib=1.0, timeout_s=60.0)
GOOD = NodeAnswer(ok=True, matmul_s=1.0, gather_s=1.0)
BAD = NodeAnswer(ok=False, reason="it broke")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodecheck_run, "_POLL_INTERVAL_S", 0.0)


def reply(
    files: CheckFiles, number: int, broken: Sequence[str] = (), skip: Sequence[str] = ()
) -> None:
    """Have all nodes answer an order; groups with a broken one fail."""
    order = files.order(number)
    assert order is not None
    for group in order.groups:
        failed = len(group) > 1 and set(group) & set(broken)
        for node in set(group) - set(skip):
            files.reply(number, node, BAD if failed else GOOD)


# --- the course -----------------------------------------------------------------------------------


def course(folder: Path) -> Course:
    return Course(CheckFiles(folder), NODES, Rules(), SIZE, start_timeout_s=60.0)


def test_a_flow_that_is_started_again_goes_on_with_the_round_under_way(tmp_path: Path) -> None:
    files = CheckFiles(tmp_path)
    first = course(tmp_path)
    assert not first.advance()
    reply(files, 0)
    assert not first.advance()
    order = files.order(1)
    second = course(tmp_path)
    assert not second.advance()
    assert files.order(1) == order
    assert files.order(2) is None
    reply(files, 1, broken=["c"])
    third = course(tmp_path)
    assert not third.advance()
    reply(files, 2, broken=["c"])
    assert third.advance()
    assert [(r.node, r.state) for r in third.findings().nodes] == [
        ("a", "good"), ("b", "good"), ("c", "faulty"), ("d", "good"),
    ]  # fmt: skip
    fourth = course(tmp_path)
    assert fourth.advance()
    assert fourth.findings() == third.findings()


def test_an_answer_after_the_end_of_its_round_counts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = CheckFiles(tmp_path)
    running = course(tmp_path)
    running.advance()
    reply(files, 0, skip=["d"])
    assert not running.advance()
    assert files.order(1) is None, "the round waits for d"
    clock = nodecheck_course.time.monotonic
    monkeypatch.setattr(nodecheck_course.time, "monotonic", lambda: clock() + 1000)
    running.advance()
    assert files.closed()[0].answers.keys() == {"a", "b", "c"}
    files.reply(0, "d", GOOD)
    again = course(tmp_path)
    again.advance()
    assert files.order(1) is not None
    assert ["d"] in files.order(1).groups  # type: ignore[union-attr]


# --- jobs -----------------------------------------------------------------------------------------


@dataclass
class Jobs:
    """A cluster whose nodes answer whenever the job is looked at."""

    up: list[str] = field(default_factory=lambda: list(NODES))
    drained_by_hand: Sequence[str] = ()
    broken: Sequence[str] = ()
    spares: Sequence[str] = ()
    can_drain: bool = True
    may_drain: bool = True
    never_starts: bool = False
    on_look: Callable[[Jobs, CheckFiles], JobView | None] = lambda *_: None
    started: list[tuple[str, ...]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    drained: dict[str, str] = field(default_factory=dict)

    def usable(self) -> list[str]:
        return self.up

    def lost(self) -> list[str]:
        return [node for node in NODES if node not in self.up and node not in self.drained_by_hand]

    def start(self, files: CheckFiles, nodes: Sequence[str]) -> None:
        self.started.append(tuple(nodes))

    def look(self, files: CheckFiles) -> JobView:
        if self.never_starts:
            return JobView(running=False, words="waits in the queue")
        if (view := self.on_look(self, files)) is not None:
            return view
        number = len(files.closed())
        if files.order(number) is not None:
            reply(files, number, self.broken)
        return JobView(running=True, nodes=(*self.started[-1], *self.spares))

    def end(self, files: CheckFiles) -> None:
        self.ended.append(files.folder.name)

    def drain(self, node: str, reason: str) -> None:
        if not self.may_drain:
            raise LaunchError("you are no operator")
        self.drained[node] = reason


def check(
    jobs: Jobs, folder: Path, nodes: Sequence[str] = NODES, **settings: object
) -> NodeCheckReport:
    return run_check(jobs, folder, nodes, NodeCheckConfig.model_validate(settings))


def test_a_faulty_node_is_drained_with_the_reason(tmp_path: Path) -> None:
    jobs = Jobs(broken=["b"])
    report = check(jobs, tmp_path)
    assert (report.complete, report.named("faulty"), report.drained) == (True, ["b"], ["b"])
    assert jobs.drained == {"b": "overland nodecheck: it broke"}
    assert jobs.ended == ["try_1"]
    assert read_report(tmp_path) == report


def test_a_report_that_is_there_is_kept(tmp_path: Path) -> None:
    report = check(Jobs(), tmp_path)
    again = Jobs()
    assert check(again, tmp_path) == report
    assert again.started == []


def test_nodes_are_not_drained_where_that_is_not_wanted_or_not_possible(tmp_path: Path) -> None:
    for number, jobs in enumerate([Jobs(broken=["b"], can_drain=False), Jobs(broken=["b"])]):
        report = check(jobs, tmp_path / str(number), drain=number == 0)
        assert (report.named("faulty"), report.drained, jobs.drained) == (["b"], [], {})


def test_who_may_not_drain_is_told_so(tmp_path: Path) -> None:
    report = check(Jobs(broken=["b"], may_drain=False), tmp_path)
    assert report.drain_errors == ["b: you are no operator"]
    assert report.complete


def test_a_node_that_is_down_is_said_to_be_down(tmp_path: Path) -> None:
    jobs = Jobs(up=["a", "c", "d"])
    report = check(jobs, tmp_path)
    assert report.named("down") == ["b"]
    assert jobs.started == [("a", "c", "d")]


def test_a_node_that_somebody_keeps_from_jobs_is_not_said_to_be_down(tmp_path: Path) -> None:
    jobs = Jobs(up=["a", "c"], drained_by_hand=["b"])
    report = check(jobs, tmp_path)
    assert (report.named("down"), report.named("undecided")) == (["d"], ["b"])
    assert list(jobs.drained) == report.drained == ["d"]
    none_left = check(Jobs(up=[], drained_by_hand=NODES), tmp_path / "none")
    assert (none_left.named("undecided"), none_left.jobs) == (NODES, 0)


def test_spare_nodes_are_in_the_report(tmp_path: Path) -> None:
    report = check(Jobs(broken=["a"], spares=["y", "z"]), tmp_path, ["a", "b"])
    assert report.named("faulty") == ["a"]
    assert report.named("good") == ["b", "y", "z"]


def test_a_job_that_is_lost_is_followed_by_one_without_the_lost_node(tmp_path: Path) -> None:
    def lose_a(jobs: Jobs, files: CheckFiles) -> JobView | None:
        if files.folder.name == "try_1" and files.order(1) is not None:
            jobs.up = ["b", "c", "d"]
            return JobView(running=False, ended=True, words="NODE_FAIL: a node of the job failed")
        return None

    jobs = Jobs(on_look=lose_a)
    report = check(jobs, tmp_path)
    assert jobs.started == [tuple(NODES), ("b", "c", "d")]
    assert (report.complete, report.jobs) == (True, 2)
    assert (report.named("down"), report.named("good")) == (["a"], ["b", "c", "d"])


def test_jobs_that_are_always_lost_end_the_check_with_the_reason(tmp_path: Path) -> None:
    gone = JobView(running=False, ended=True, words="FAILED: no such file")
    report = check(Jobs(on_look=lambda *_: gone), tmp_path)
    assert not report.complete
    assert report.reason == "the check's job ended early: FAILED: no such file"
    assert report.jobs == nodecheck_run.MAX_JOBS
    assert report.named("undecided") == NODES


def test_a_job_that_does_not_start_in_time_is_ended(tmp_path: Path) -> None:
    jobs = Jobs(never_starts=True)
    report = check(jobs, tmp_path, timeout_s=0.05)
    assert not report.complete
    assert report.reason == "its job has not started within 0.05 s: waits in the queue"
    assert jobs.ended == ["try_1"]


def test_a_check_that_takes_too_long_says_what_it_knows(tmp_path: Path) -> None:
    def silent_after_roll_call(jobs: Jobs, files: CheckFiles) -> JobView | None:
        view = JobView(running=True, nodes=jobs.started[-1])
        return view if files.order(1) is not None else None

    report = check(Jobs(on_look=silent_after_roll_call), tmp_path, timeout_s=0.2)
    assert not report.complete
    assert report.reason == "it took longer than 0.2 s"
    assert report.named("undecided") == NODES
    assert {result.reason for result in report.nodes} == {"it was not tried with another node"}


def test_a_launcher_that_fails_ends_the_check_not_the_run(tmp_path: Path) -> None:
    class Refuses(Jobs):
        def start(self, files: CheckFiles, nodes: Sequence[str]) -> None:
            raise LaunchError("job 'x' was refused")

    report = check(Refuses(), tmp_path)
    assert (report.complete, report.reason) == (False, "job 'x' was refused")


def test_a_launcher_that_fails_in_mid_check_leaves_what_was_found(tmp_path: Path) -> None:
    def fail_in_round_2(jobs: Jobs, files: CheckFiles) -> JobView | None:
        if files.order(2) is not None:
            raise LaunchError("Slurm has not answered for 900 s")
        return None

    jobs = Jobs(broken=["b"], on_look=fail_in_round_2)
    report = check(jobs, tmp_path)
    assert (report.complete, report.reason) == (False, "Slurm has not answered for 900 s")
    good = report.named("good")
    assert len(good) == 2
    assert "b" not in good
    assert CheckFiles(tmp_path / "try_1").done.exists(), "its nodes are told to leave"
    assert jobs.ended == ["try_1"]


def test_a_job_that_cannot_be_ended_costs_no_findings(tmp_path: Path) -> None:
    class CannotEnd(Jobs):
        def end(self, files: CheckFiles) -> None:
            raise LaunchError("it cannot be ended")

    report = check(CannotEnd(broken=["b"]), tmp_path)
    assert (report.named("faulty"), report.drained) == (["b"], ["b"])
    assert report.reason == "its job could not be ended: it cannot be ended"
    waiting = check(CannotEnd(never_starts=True), tmp_path / "waiting", timeout_s=0.05)
    assert waiting.reason.startswith("its job has not started within 0.05 s")
