"""Inference that is killed, run again, or given something else than it planned for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from evaluation_setup import REPOSITORY, prepare_evaluation, stage_command, write_heldout

from configs.rundir import EvaluationDir, RunDir
from tasks.evaluate.infer import infer
from tasks.evaluate.plan import read_plan
from tasks.evaluate.responses import read_responses
from tasks.evaluate.score import score
from tasks.evaluate.staging import SHARED_MEMORY
from tasks.evaluate.times import read_times
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def holder_of_last_claim(evaluation: EvaluationDir) -> int:
    """Process number of the worker that has claimed last."""
    claims = (path for path in evaluation.claims_dir.glob("*.[0-9]*") if path.name[0] != ".")
    last = max(claims, key=lambda path: path.stat().st_mtime_ns)
    return int(json.loads(last.read_text())["pid"])


def done(evaluation: EvaluationDir) -> dict[Path, tuple[int, int]]:
    """What tells a shard's file from one that was written again."""
    stats = {path: path.stat() for path in evaluation.responses_dir.glob("*.jsonl")}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in stats.items()}


def test_deaths_cost_no_shard_that_is_done(run: RunDir, tiny_model: Path) -> None:
    """A worker is killed, which the crew replaces; then the crew, whose workers end with it."""
    write_heldout(run.heldout_dir, count=150)  # long enough to be killed in the middle
    evaluation = prepare_evaluation(run, tiny_model, workers=2)
    crew = subprocess.Popen(stage_command("infer", run), cwd=REPOSITORY)
    wait_until(lambda: done(evaluation), "a shard")
    worker = holder_of_last_claim(evaluation)
    os.kill(worker, signal.SIGKILL)
    before = done(evaluation)
    wait_until(lambda: len(done(evaluation)) > len(before), "one more shard")
    assert crew.poll() is None
    worker = holder_of_last_claim(evaluation)
    crew.kill()
    crew.wait()
    wait_until(lambda: not psutil.pid_exists(worker), "the worker to end")
    before |= done(evaluation)
    torn = evaluation.responses_dir / ".x.jsonl.0badf00d.tmp"
    torn.write_text("{")

    infer(evaluation, run.heldout_dir)

    assert before.items() <= done(evaluation).items()
    assert not torn.exists()
    plan = read_plan(evaluation)
    assert len(read_responses(evaluation, plan)) == 150 * 6
    answered = [t.name for t in read_times(evaluation) if t.kind == "shard"]
    assert len(answered) == len(set(answered))
    # Evaluations of the same model beside this one may still hold the copy.
    copies = SHARED_MEMORY / f"overland-{os.getuid()}" / "models"
    wait_until(lambda: not list(copies.glob(f"{plan.model_sha256[:32]}*")), "the copy to go")


@pytest.mark.soak
def test_finished_inference_is_not_run_again_until_the_config_changes(
    run: RunDir, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"tasks": ["heldout_cloze"], "bootstrap_iterations": 0}
    evaluation = prepare_evaluation(run, tiny_model, **config)
    infer(evaluation, run.heldout_dir)
    before = done(evaluation)
    infer(evaluation, run.heldout_dir)
    assert capsys.readouterr().out.splitlines()[-1] == "all shards are done"
    assert done(evaluation) == before
    scores = score(evaluation)
    assert scores.scores[0].stderr is None  # Without resampling.
    assert scores.checkpoint == "the exported one"

    evaluation.config_path.write_text(
        evaluation.config_path.read_text().replace('"limit":null', '"limit":2')
    )
    infer(evaluation, run.heldout_dir)
    assert len(read_responses(evaluation, read_plan(evaluation))) == 2


@pytest.mark.soak
def test_a_shard_whose_file_is_gone_is_answered_again_as_it_was_asked(
    run: RunDir, tiny_model: Path
) -> None:
    """Even when the data has changed since: the requests were written down."""
    evaluation = prepare_evaluation(run, tiny_model, tasks=["heldout_cloze"])
    infer(evaluation, run.heldout_dir)
    first = min(done(evaluation))
    text = first.read_text()
    first.unlink()
    before = done(evaluation)
    write_heldout(run.heldout_dir, count=7)
    infer(evaluation, run.heldout_dir)
    assert first.read_text() == text
    assert before.items() <= done(evaluation).items()


def test_error_of_a_job_is_its_last_line(run: RunDir) -> None:
    done = subprocess.run(
        stage_command("infer", run), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last.startswith("error: ")
    assert last.endswith("is no exported model: export it first")
