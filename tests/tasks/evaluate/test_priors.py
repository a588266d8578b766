"""Estimates follow what was measured, shrug off wild measurements, and reach tasks and models never seen."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from configs.errors import EvaluationError
from configs.rundir import EvaluationDir
from tasks.evaluate.expected import TaskCounts, expected_item, measured
from tasks.evaluate.forecast import PartTimes, remember
from tasks.evaluate.plan import Answering
from tasks.evaluate.priors import FIRST_GUESS_S, Measurement, Priors
from tasks.evaluate.priors_robust import robust_location
from tasks.evaluate.times import Done, read_times, record


def decode_s(priors: Priors, task: str, parameters: float = 7e9, backend: str = "hf") -> float:
    estimate = priors.estimate(
        "decode", task=task, backend=backend, parameters=parameters, units=1000
    )
    return estimate.seconds


def trial(task: str, seconds: float, parameters: float = 7e9) -> Measurement:
    return Measurement(task, "decode", "hf", parameters, units=1000, seconds=seconds)


def test_without_measurements_counts_decide(tmp_path: Path) -> None:
    priors = Priors(tmp_path / "priors.sqlite")
    assert decode_s(priors, "any") == pytest.approx(1000 * 7e9 * FIRST_GUESS_S["decode"])
    assert decode_s(priors, "any", 14e9) == pytest.approx(2 * decode_s(priors, "any"))
    nothing = priors.estimate("decode", task="a", backend="hf", parameters=7e9, units=0)
    assert nothing.seconds == 0


def test_measurements_are_followed_and_outliers_are_not(tmp_path: Path) -> None:
    priors = Priors(tmp_path / "priors.sqlite")
    draw = random.Random(1)
    for _ in range(8):
        priors.record([trial("gsm8k", 40.0 * draw.uniform(0.95, 1.05))])
    before_s = decode_s(priors, "gsm8k")
    assert before_s == pytest.approx(40.0, rel=0.1)
    priors.record([trial("gsm8k", 4000.0), trial("gsm8k", 0.01)])
    assert decode_s(priors, "gsm8k") == pytest.approx(before_s, rel=0.1)
    fresh = Priors(tmp_path / "priors.sqlite")  # as another process reads it
    assert decode_s(fresh, "gsm8k") == decode_s(priors, "gsm8k")


def test_a_changed_machine_is_learnt_in_a_few_trials(tmp_path: Path) -> None:
    priors = Priors(tmp_path / "priors.sqlite")
    for seconds in [40.0] * 30 + [20.0] * 24:
        priors.record([trial("gsm8k", seconds)])
    assert decode_s(priors, "gsm8k") == pytest.approx(20.0, rel=0.1)
    with sqlite3.connect(tmp_path / "priors.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM measured").fetchone() == (24,)


def test_tasks_and_models_never_seen_start_from_the_others(tmp_path: Path) -> None:
    priors = Priors(tmp_path / "priors.sqlite")
    guess_s = decode_s(priors, "any")
    for task in ("a", "b", "c"):
        priors.record([trial(task, 3 * guess_s)] * 3)
    priors.record([trial("slow", 12 * guess_s)] * 3)
    assert decode_s(priors, "new") == pytest.approx(3 * guess_s, rel=0.35)
    # A model ten times as large takes ten times as long, and the slow task stays the slow one.
    assert decode_s(priors, "a", 70e9) == pytest.approx(30 * guess_s, rel=0.35)
    assert decode_s(priors, "slow", 70e9) > 2 * decode_s(priors, "a", 70e9)
    assert decode_s(priors, "new", backend="other") == pytest.approx(guess_s)


def test_metrics_know_no_model(tmp_path: Path) -> None:
    priors = Priors(tmp_path / "priors.sqlite")
    counts = TaskCounts("humaneval", documents=164, prompt_tokens=20_000, generated_tokens=80_000)
    took = measured(counts, backend="hf", parameters=1e9, infer_s=50.0, metric_s=42.0)
    priors.record(list(took) * 4)
    item = expected_item(priors, counts, backend="hf", parameters=7e9)
    assert item.metric_s == pytest.approx(42.0, rel=0.1)
    assert 150 < item.infer_s < 700
    assert (item.task, item.requests) == ("humaneval", 164)
    same = expected_item(priors, counts, backend="hf", parameters=1e9)
    assert same.infer_s == pytest.approx(50.0, rel=0.35)


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "priors.sqlite"
    script = (
        "import sys; from pathlib import Path\n"
        "from tasks.evaluate.priors import Measurement, Priors\n"
        "priors = Priors(Path(sys.argv[1]))\n"
        "for number in range(10):\n"
        "    priors.record([Measurement(sys.argv[2], 'decode', 'hf', 1e9, 10.0, 1.0 + number)])\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(path), f"task{at}"]) for at in range(4)
    ]
    assert [writer.wait(timeout=300) for writer in writers] == [0] * 4
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT task, count(*) FROM measured GROUP BY task").fetchall()
    assert sorted(rows) == [(f"task{at}", 10) for at in range(4)]


def test_a_file_that_is_no_store_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "priors.sqlite"
    path.write_text("something else, long enough to be looked at\n" * 100)
    with pytest.raises(EvaluationError, match="remove it"):
        Priors(path)
    newer = tmp_path / "newer.sqlite"
    Priors(newer)
    with sqlite3.connect(newer) as connection:
        connection.execute("UPDATE about SET layout = 99")
    with pytest.raises(EvaluationError, match="layout 99"):
        Priors(newer)


def test_robust_location_leans_on_its_prior_until_it_has_samples() -> None:
    assert robust_location([], [], prior=2.0)[0] == 2.0
    one, _ = robust_location([1.0], [1.0], prior=0.0, prior_weight=1.0)
    many, _ = robust_location([1.0] * 20, [1.0] * 20, prior=0.0, prior_weight=1.0)
    assert 0 < one < many < 1.0


def test_reading_the_prompts_is_not_expected_twice(tmp_path: Path) -> None:
    """What was measured of a task that generates holds both, whatever others say about prompts."""
    priors = Priors(tmp_path / "priors.sqlite")
    writes = TaskCounts("writes", documents=100, prompt_tokens=1e6, generated_tokens=1e3)
    reads = TaskCounts("reads", documents=100, prompt_tokens=1e6)
    for counts, infer_s in ((writes, 50.0), (reads, 40.0)):
        took = measured(counts, backend="hf", parameters=1e9, infer_s=infer_s, metric_s=None)
        priors.record(list(took) * 8)
        item = expected_item(priors, counts, backend="hf", parameters=1e9)
        assert item.infer_s == pytest.approx(infer_s, rel=0.1)


def test_a_trial_is_remembered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAND_PRIORS", str(tmp_path / "priors.sqlite"))
    evaluation = EvaluationDir(tmp_path / "evaluation", step=0)
    evaluation.model_dir.mkdir(parents=True)
    (evaluation.model_dir / "model.safetensors").write_bytes(b"x" * 1000)
    answering = Answering(
        backend="hf", device="cpu", dtype="float32", batch_size=1, cpu_threads=1, lm_eval_version=""
    )
    part = PartTimes(TaskCounts("a", 10, 100.0), "target", ["one", "two"], metric_s=3.0)

    def rows_after(*done: tuple[Literal["load", "shard", "score"], str, float]) -> dict[str, int]:
        for kind, name, ended_at in done:
            record(
                evaluation,
                Done(kind=kind, name=name, worker="w", started_at=ended_at - 1, ended_at=ended_at),
            )
        remember(evaluation, answering, [part], read_times(evaluation))
        with sqlite3.connect(tmp_path / "priors.sqlite") as connection:
            rows = connection.execute("SELECT phase, count(*) FROM measured GROUP BY phase")
            return dict(rows.fetchall())

    first = {"load": 1, "metric": 1, "prefill": 1}
    trial = ("load", "model", 10.0), ("shard", "one", 11.0), ("shard", "two", 12.0)
    assert rows_after(*trial, ("score", "target", 13.0)) == first
    assert rows_after() == first
    assert rows_after(("score", "target", 20.0)) == {**first, "metric": 2}  # scored anew
    assert rows_after(("shard", "two", 30.0)) == {"load": 1, "metric": 2, "prefill": 2}
