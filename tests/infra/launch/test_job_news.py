"""What is said about a job of a cluster: each change once."""

from __future__ import annotations

from infra.launch.base import JobState, JobStatus
from infra.launch.news import JobNews

RUNS = JobStatus(JobState.RUNNING, nodes=("a", "b"))


def waits(why: str) -> JobStatus:
    return JobStatus(JobState.PENDING, reason=f"waits in the queue of partition main: {why}")


def said(*seen: tuple[float, JobStatus], was_there: bool = False, starts: bool = True) -> list[str]:
    """What is said when these are seen at these seconds."""
    lines: list[str] = []
    news = JobNews("job 12", lines.append, was_there=was_there, starts=starts)
    for now, status in seen:
        news.see(status, now=now)
    return lines


def test_a_wait_its_reasons_and_its_end() -> None:
    resources, priority = waits("Resources"), waits("Priority")
    lines = said(
        (0, resources), (2, resources), (4, resources), (6, priority), (8, resources), (10, priority),
        (3700, priority), (3702, RUNS), (3704, RUNS),
    )  # fmt: skip
    assert lines == [
        "job 12 waits in the queue of partition main: Resources",
        "job 12 waits in the queue of partition main: Priority",
        "job 12 waits in the queue of partition main: Priority",
        "job 12 runs on a, b",
    ]


def test_a_job_that_starts_at_once() -> None:
    assert said((0, waits("None")), (1, RUNS), (2, RUNS)) == ["job 12 runs on a, b"]
    # An evaluation's start is worth a word only after a wait.
    assert said((0, waits("None")), (1, RUNS), starts=False) == []
    long = said((0, waits("Resources")), (5, waits("Resources")), (6, RUNS), starts=False)
    assert long[1:] == ["job 12 runs on a, b"]


def test_a_job_that_is_picked_up_again() -> None:
    assert said((0, RUNS), (1, RUNS), was_there=True) == [
        "job 12 goes on, on a, b: it is watched again"
    ]


def test_suspended_and_resumed() -> None:
    suspended = JobStatus(JobState.RUNNING, nodes=("a", "b"), suspended=True)
    assert said((0, RUNS), (1, suspended), (2, suspended), (3, RUNS))[1:] == [
        "job 12 is suspended by Slurm",
        "job 12 runs on a, b",
    ]


def test_a_server_that_stays_away() -> None:
    stale = JobStatus(JobState.RUNNING, nodes=("a", "b"), stale=True)
    assert said((0, RUNS), (1, stale), (2, RUNS), (3, stale), (20, stale), (30, RUNS))[1:] == []
    assert said((0, RUNS), (1, stale), (31, stale), (60, stale), (70, RUNS), (71, RUNS))[1:] == [
        "Slurm does not answer: job 12 goes on, and is asked for until it does",
        "Slurm answers again",
    ]


def test_many_nodes_are_not_all_named() -> None:
    many = JobStatus(JobState.RUNNING, nodes=tuple(f"n{i}" for i in range(64)))
    assert said((0, many)) == ["job 12 runs on n0, n1, n2, n3 and 60 more"]
