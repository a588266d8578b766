"""Lines that speak of errors and report none."""

from __future__ import annotations

from pathlib import Path

from tasks.diagnose.diagnose import diagnose_files
from tests.tasks.diagnose.one_log import verdict_on

FAULT = [
    "Traceback (most recent call last):",
    '  File "/work/train.py", line 3, in step',
    "KeyError: 'labels'",
]


def test_a_setting_may_speak_of_errors(tmp_path: Path) -> None:
    settings = ["{", '    "hint": "CUDA out of memory: lower micro_batch",', "}"]
    assert verdict_on(tmp_path, [*settings, *FAULT]).failure_class == "KeyError"
    reported = ["{", '    "message": "RuntimeError: CUDA out of memory",', "}"]
    assert verdict_on(tmp_path, reported).failure_class == "OutOfMemoryError"


def test_kubernetes_calls_any_event_a_warning(tmp_path: Path) -> None:
    event = "2m  Warning  Failed  pod/w-0  Failed to pull image: r/lm:rc9: not found"
    assert verdict_on(tmp_path, [event]).action == "fix_by_user"


def test_a_raylets_count_may_be_of_other_jobs_workers(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(
        "Traceback (most recent call last):\n"
        '  File "/w/train.py", line 7, in main\n'
        "KeyError: 'reward'\n"
        "(raylet) node_manager.cc:3287: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers "
        "crashed due to other reasons at node (ID: ab, IP: 10.1.1.7) over the last time period.\n"
    )
    assert diagnose_files([path]).failure_class == "KeyError"


def test_what_a_language_model_writes_is_no_report(tmp_path: Path) -> None:
    steps = [f"iter {at}: loss 2.1{at % 10}" for at in range(2000)]
    sampled = 'iter 1990: sample 3: "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT DUE TO TIME LIMIT ***"'
    done = ["iter 2000: reached max_iters=2000, val loss 2.55", "done, exit code 0"]
    log = [*steps[:1990], sampled, *steps[1990:]]
    assert verdict_on(tmp_path, [*log, *done]).failure_class == "NoFailure"
    assert verdict_on(tmp_path, [*log, *FAULT]).failure_class == "KeyError"
    said = sampled.partition('"')[2]
    assert verdict_on(tmp_path, [*steps, said]).failure_class == "SlurmTimeLimit"
