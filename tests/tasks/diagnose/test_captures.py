"""Collectors' lines on jobs that still ran: their time, and how old the last output was."""

from __future__ import annotations

import pytest

from tasks.diagnose.captures import capture_in, looked_at


@pytest.mark.parametrize(
    ("text", "silence_s"),
    [
        ("[watch 2025-06-01 09:18:39] job 5859962 RUNNING; newest output 4 s ago", 4),
        ("collector: 2024-08-21 05:13:46 tail, state R, last write 3 s ago", 3),
        ("### 2025-03-10 10:08:00 job still in state RUNNING, newest line is 55 min old", 3300),
        ("[collector 2024-02-02 15:24:06] job 78: RUNNING, no new output for 7400 s", 7400),
        ("[reaper] 2024-10-01 11:09:15 job 8: state RUNNING, no log line since 68 min", 4080),
        ("squeue: 7542084 R 58:20 zeus-[40-45]; log file mtime 1.5 hours ago", 5400),
        ("snapshot 2025-01-09T17:32:24 job=1 state=RUNNING last_output=5400s ago", 5400),
    ],
)
def test_the_age_of_the_last_output_is_read(text: str, silence_s: float) -> None:
    seen = capture_in(text)
    assert seen is not None
    assert seen.silence_s == silence_s
    if seen.taken is not None:
        assert seen.last_output == seen.taken - silence_s


@pytest.mark.parametrize(
    "text",
    [
        "[s] snapshot 2025-09-05T18:03:03 job=8 state=RUNNING last_output=2025-09-05T18:02:52",
        "== 2025-09-05 18:03:03 job 8 RUNNING on n[1-4]; last line written 2025-09-05 18:02:52 ==",
    ],
)
def test_a_time_of_the_last_output_is_read(text: str) -> None:
    seen = capture_in(text)
    assert seen is not None and seen.taken is not None and seen.last_output is not None
    assert seen.taken - seen.last_output == 11


@pytest.mark.parametrize(
    "text",
    [
        "2025-01-01 10:00:00 RUNNER started",
        "2025-01-01 10:00:00 running on gpu-1",
        "job 7 is RUNNING",  # Tells no time at all.
        "[s] snapshot 2025-01-01T10:00:00 job=8 state=FAILED exit=1:0",
    ],
)
def test_other_lines_are_no_captures(text: str) -> None:
    assert capture_in(text) is None


SQUEUE = "88003 RUNNING 3:29:20 2-00:00:00 4"


@pytest.mark.parametrize(
    ("beside", "silence_s"),
    [
        (["2025-08-30T22:22:32 slurm-8.out", "2025-08-30T23:22:32"], 3600),
        (["Sat Aug 30 22:22:42 CEST 2025", "2025-08-30 22:22:32.12 +0200 slurm-8.out"], 10),
        (["-rw-r--r-- 1 lee ml 81 2025-08-30 22:22:32.1 +0200 a.log", "2025-08-30 22:32:32"], 600),
        (["Modify: 2025-08-30 22:22:32.120000000 +0200", "2025-08-30T22:23:32+02:00"], 60),
    ],
)
def test_a_clock_and_a_logs_time_beside_the_queues_row_make_a_capture(
    beside: list[str], silence_s: float
) -> None:
    seen = looked_at(SQUEUE, beside)
    assert seen is not None
    assert seen.silence_s == silence_s


@pytest.mark.parametrize(
    ("row", "beside"),
    [
        (SQUEUE, ["2025-08-30T22:22:32 slurm-8.out"]),
        (SQUEUE, ["2025-08-30T23:22:32"]),
        (SQUEUE, ["2025-08-30T23:22:32 INFO wrote eval.log", "2025-08-30T23:22:32 ok"]),
        ("88003 COMPLETED", ["2025-08-30T22:22:32 slurm-8.out", "2025-08-30T23:22:32"]),
    ],
)
def test_without_both_times_and_a_running_job_there_is_none(row: str, beside: list[str]) -> None:
    assert looked_at(row, beside) is None


def test_a_unit_in_letters_that_only_look_like_others_is_read() -> None:
    capture = capture_in("state=RUNNING last output: 5 \N{LATIN SMALL LETTER LONG S}ec ago")
    assert capture is not None
    assert capture.silence_s == 5


def test_pods_that_run_are_seen_by_the_clock_of_who_lists_them() -> None:
    row, clock = "mpt-3   1/1   Running   0     3h44m", "2025-07-11T23:41:09Z"
    step = "mpt-1 2025-07-11T20:35:49+00:00 rank=14 step=6175 loss=2.209"
    seen = looked_at(row, [step, clock, row])
    assert seen is not None and seen.taken is not None
    assert (seen.last_output, seen.silence_s) == (None, None)
    other_zone = "mpt-1 2025-07-11 20:35:49 rank=14 step=6175 loss=2.209"
    assert looked_at(row, [other_zone, clock, row]) is None
