"""Writes run directories as the stages do, for the tests of tracking."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from configs.events import (
    CheckpointEvent,
    EndEvent,
    Event,
    FaultEvent,
    StartEvent,
    StepEvent,
    ValidationEvent,
)
from configs.files import append_json_line, write_json, write_text
from configs.load import dump_config
from configs.records import (
    Action,
    AttemptRecord,
    CommitMarker,
    DataManifest,
    EvaluationFailure,
    EvaluationScores,
    FileRecord,
    Goodput,
    Score,
    SourceRecord,
    SplitRecord,
    Verdict,
)
from configs.regressions import Regression, RegressionReport
from configs.rundir import COMMIT_MARKER_NAME, RunDir, write_record
from configs.schema import RunConfig, TrackingConfig

START = 1_700_000_000.0


def loss_of(step: int) -> float:
    """Equal in every attempt, as on the same hardware."""
    return 8.0 / step


@dataclass
class RunWriter:
    """A run directory that grows as a real one does: two seconds a step from START on."""

    run: RunDir
    tracking: TrackingConfig

    def begin(self, name: str = "quick") -> None:
        config = RunConfig(name=name, run_dir=self.run.path, tracking=self.tracking)
        write_text(self.run.config_path, dump_config(config))
        split = SplitRecord(
            prefix="train", documents=9, tokens=900, sha256_bin="b" * 64, sha256_idx="i" * 64
        )
        source = SourceRecord(name="wiki", size_bytes=10, sha256="c" * 64, documents=10)
        manifest = DataManifest(
            fingerprint="f" * 64,
            sources=[source],
            documents_read=10,
            documents_empty=0,
            documents_duplicate=0,
            tokenizer_sha256="t" * 64,
            vocab_size=4096,
            end_of_text_id=0,
            train=split,
            validation=split,
            bytes_per_token=4.0,
            created_at=START - 5.0,
            duration_s=5.0,
        )
        write_record(self.run.manifest_path, manifest)

    def start_attempt(self, number: int, at: float = START) -> None:
        record = AttemptRecord(
            number=number, key=f"k/{number}", job_id=f"job-{number}", submitted_at=at, nodes=["n1"]
        )
        write_record(self.run.attempt(number).record_path, record)

    def event(self, number: int, event: Event) -> None:
        append_json_line(self.run.attempt(number).events_path, event.model_dump(mode="json"))

    def steps(self, number: int, first: int, last: int, at: float = START) -> None:
        """Training from `first` to `last`, with a validation and a checkpoint every 50 steps."""
        start = StartEvent(
            time=at + 4.0,
            step=first - 1,
            checkpoint=f"step_{first - 1:08d}" if first > 1 else None,
            world_size=2,
            device="cpu",
            precision="fp32",
            num_parameters=1000,
            padded_vocab_size=4096,
            load_time_s=1.0 if first > 1 else 0.0,
        )
        self.event(number, start)
        for step in range(first, last + 1):
            time = at + 6.0 + 2.0 * (step - first)
            self.event(number, self._step(step, time))
            if step % 50 == 0:
                loss = loss_of(step) + 0.1
                self.event(
                    number, ValidationEvent(time=time + 0.5, step=step, loss=loss, duration_s=0.4)
                )
                self.checkpoint(number, step, time + 1.0)

    @staticmethod
    def _step(step: int, time: float) -> StepEvent:
        return StepEvent(
            time=time,
            step=step,
            loss=loss_of(step),
            grad_norm=1.5,
            learning_rate=1e-3,
            step_time_s=1.9,
            tokens_per_s=1000.0,
        )

    def checkpoint(self, number: int, step: int, time: float) -> None:
        folder = self.run.checkpoint(step).path
        marker = CommitMarker(
            step=step,
            consumed_samples=16 * step,
            model_fingerprint="m" * 64,
            padded_vocab_size=4096,
            files={"a.distcp": FileRecord(size_bytes=1234, sha256="a" * 64)},
            attempt=number,
            parallel={"tensor": 1, "pipeline": 1, "data": 2},
            committed_at=time,
            duration_s=0.3,
        )
        write_record(folder / COMMIT_MARKER_NAME, marker)
        event = CheckpointEvent(
            time=time, step=step, outcome="committed", duration_s=0.3, size_bytes=1234
        )
        self.event(number, event)

    def fail_attempt(self, number: int, step: int, at: float, submitted_at: float = START) -> None:
        """SIGKILL of rank 1 before `step`, its verdict and the decision to restart."""
        self.event(number, FaultEvent(time=at - 3.0, step=step, rank=1, kind="kill"))
        attempt = self.run.attempt(number)
        write_text(attempt.job_dir / "launcher.log", "torchrun says\nrank 1 exit code -9\n")
        record = AttemptRecord(
            number=number,
            key=f"k/{number}",
            job_id=f"job-{number}",
            submitted_at=submitted_at,
            ended_at=at,
            outcome="failed",
            exit_code=1,
            signal=9,
            nodes=["n1"],
        )
        write_record(attempt.record_path, record)
        verdict = Verdict(
            failure_class="NodeFailure",
            category="infrastructure",
            root_cause_file="job/launcher.log",
            root_cause_line=2,
            root_cause_text="rank 1 exit code -9",
            faulty_rank=1,
            faulty_node="n1",
            action="restart_same_nodes",
            confidence=0.9,
            method="rule:sigkill",
            evidence=["rank 1 exit code -9"],
        )
        write_record(attempt.verdict_path, verdict)
        action = Action(
            kind="restart_same_nodes", stop=False, reason="restart 1 of 3", decided_at=at + 2.0
        )
        write_record(attempt.action_path, action)

    def complete_attempt(self, number: int, step: int, at: float, submitted_at: float) -> None:
        self.event(number, EndEvent(time=at - 0.5, step=step))
        record = AttemptRecord(
            number=number,
            key=f"k/{number}",
            job_id=f"job-{number}",
            submitted_at=submitted_at,
            ended_at=at,
            outcome="completed",
            exit_code=0,
        )
        write_record(self.run.attempt(number).record_path, record)

    def scores(
        self, step: int, at: float, *, accuracy: float = 0.5, failed: dict[str, str] | None = None
    ) -> None:
        scores = EvaluationScores(
            step=step,
            scores=[
                Score(task="cloze", metric="acc,none", value=accuracy, stderr=0.01, samples=100),
                Score(task="ppl", metric="word_perplexity,none", value=1000.0 / step),
            ],
            failed=failed or {},
            tasks=["cloze", "ppl"],
            checkpoint=self.run.checkpoint(step).identity() or "",
            plan_sha256="p" * 64,
            export_s=1.0,
            infer_s=5.0,
            score_s=2.0,
            started_at=at,
            ended_at=at + 9.0,
        )
        evaluation = self.run.evaluation(step)
        evaluation.failure_path.unlink(missing_ok=True)
        write_record(evaluation.scores_path, scores)

    def regressed(self, step: int, *, unhealthy: bool) -> None:
        found = Regression(
            task="cloze",
            metric="acc,none",
            value=0.1,
            usual=0.5,
            worse_by=0.4,
            limit=0.05,
            deviation=0.01,
            higher_is_better=True,
            since_step=step,
        )
        report = RegressionReport(
            step=step,
            checkpoint=self.run.checkpoint(step).identity() or "",
            compared_with=[],
            regressions=[found],
            unhealthy=unhealthy,
            judged_at=START,
        )
        write_record(self.run.evaluation(step).regressions_path, report)

    def failed_evaluation(self, step: int, at: float) -> None:
        failure = EvaluationFailure(step=step, stage="infer", reason="killed", failed_at=at)
        write_record(self.run.evaluation(step).failure_path, failure)

    def summary(self, status: str = "completed") -> None:
        goodput = Goodput(
            wall_s=400.0,
            productive_s=300.0,
            recomputed_s=40.0,
            checkpoint_s=10.0,
            validation_s=10.0,
            startup_s=20.0,
            detection_s=10.0,
            restart_s=10.0,
            goodput=0.75,
        )
        summary = {
            "status": status,
            "final_step": 200,
            "final_loss": loss_of(200),
            "goodput": goodput.model_dump(),
        }
        write_json(self.run.summary_path, summary)

    def first_attempt(self) -> None:
        """Attempt 1: 129 steps, then rank 1 is killed."""
        self.start_attempt(1)
        self.steps(1, 1, 129)
        self.fail_attempt(1, 130, START + 270.0)

    def second_attempt(self) -> None:
        """Attempt 2: from step 100 to 200."""
        self.start_attempt(2, START + 275.0)
        self.steps(2, 101, 200, START + 275.0)
        self.complete_attempt(2, 200, START + 490.0, START + 275.0)

    def small(self) -> None:
        """A run of 50 steps with one checkpoint, evaluated."""
        self.begin()
        self.start_attempt(1)
        self.steps(1, 1, 50)
        self.complete_attempt(1, 50, START + 110.0, START)
        self.scores(50, START + 120.0)
        self.summary()

    def whole(self) -> None:
        """A run of 200 steps, through a crash, all checkpoints evaluated."""
        self.begin()
        self.first_attempt()
        self.second_attempt()
        for step in (50, 100, 150, 200):
            self.scores(step, START + 3.0 * step)
        self.summary()


def run_writer(run_dir: Path, tracking: TrackingConfig | None = None) -> RunWriter:
    return RunWriter(RunDir(run_dir), tracking or TrackingConfig())
