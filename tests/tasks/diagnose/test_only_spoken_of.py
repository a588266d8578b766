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
