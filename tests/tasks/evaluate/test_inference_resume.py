"""Inference that is killed, run again, or given something else than it planned for."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from evaluation_setup import REPOSITORY, prepare_evaluation, stage_command, write_heldout

from configs.errors import EvaluationError
from configs.rundir import RunDir
from tasks.evaluate.infer import infer
from tasks.evaluate.plan import read_plan
from tasks.evaluate.responses import read_responses, read_timings
from tasks.evaluate.score import score

pytestmark = pytest.mark.slow


def wait_for(path: Path, process: subprocess.Popen[bytes], timeout_s: float = 240.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert process.poll() is None, "inference ended early"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_rerun_after_sigkill_keeps_the_shards_that_are_done(run: RunDir, tiny_model: Path) -> None:
    write_heldout(run.heldout_dir, count=50)  # Long enough to be killed in the middle.
    evaluation = prepare_evaluation(run, tiny_model)
    first = evaluation.responses_dir / "000_heldout_perplexity.jsonl"
    last = evaluation.responses_dir / "003_heldout_copy.jsonl"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(stage_command("infer", run), cwd=REPOSITORY, env=environment)
    wait_for(first, process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not last.exists()
    before = first.stat()
    torn = evaluation.responses_dir / ".003_heldout_copy.jsonl.0badf00d.tmp"
    torn.write_text("{")

    infer(evaluation, run.heldout_dir)

    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not torn.exists()
    assert len(read_responses(evaluation, read_plan(evaluation))) == 50 * 6
    timings = read_timings(evaluation)
    assert timings is not None
    assert last.stem in timings.shards


def test_finished_inference_is_not_run_again_until_the_config_changes(
    run: RunDir, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"tasks": ["heldout_cloze"], "bootstrap_iterations": 0}
    evaluation = prepare_evaluation(run, tiny_model, **config)
    infer(evaluation, run.heldout_dir)
    (path,) = evaluation.responses_dir.iterdir()
    before = path.stat()
    infer(evaluation, run.heldout_dir)
    assert capsys.readouterr().out.splitlines()[-1] == "all shards are done"
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    scores = score(evaluation)
    assert scores.scores[0].stderr is None  # Without resampling.
    assert scores.checkpoint == "the exported one"

    evaluation.config_path.write_text(
        evaluation.config_path.read_text().replace('"limit":null', '"limit":2')
    )
    infer(evaluation, run.heldout_dir)
    assert len(path.read_text().splitlines()) == 2


def test_data_that_changed_since_planning_is_refused(run: RunDir, tiny_model: Path) -> None:
    evaluation = prepare_evaluation(run, tiny_model, tasks=["heldout_cloze", "heldout_copy"])
    infer(evaluation, run.heldout_dir)
    (evaluation.responses_dir / "001_heldout_copy.jsonl").unlink()
    write_heldout(run.heldout_dir, count=7)
    with pytest.raises(EvaluationError, match="'heldout_cloze' has other prompts than when it was"):
        infer(evaluation, run.heldout_dir)


def test_error_of_a_job_is_its_last_line(run: RunDir) -> None:
    done = subprocess.run(
        stage_command("infer", run), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last.startswith("error: ")
    assert last.endswith("is no exported model: export it first")
