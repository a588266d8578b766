"""Writes a run directory record by record, as the stages would, without running any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml

from configs.events import (
    AnomalyEvent,
    CheckpointEvent,
    FaultEvent,
    StartEvent,
    StepEvent,
    ValidationEvent,
)
from configs.files import append_json_line
from configs.records import (
    Action,
    AttemptRecord,
    CommitMarker,
    DataManifest,
    EvaluationFailure,
    EvaluationScores,
    FileRecord,
    Goodput,
    Record,
    Score,
    SplitRecord,
    Verdict,
)
from configs.regressions import EvaluationLeftOut, Regression, RegressionReport
from configs.rundir import COMMIT_MARKER_NAME, RunDir, write_record

GOODPUT = Goodput(
    wall_s=100.0,
    productive_s=70.0,
    recomputed_s=8.0,
    checkpoint_s=2.0,
    validation_s=3.0,
    startup_s=12.0,
    detection_s=2.0,
    restart_s=2.5,
    other_s=0.5,
    goodput=0.7,
)
KILLED = Verdict(
    failure_class="NodeFailure",
    category="infrastructure",
    root_cause_file="rank_00001.log",
    root_cause_line=42,
    root_cause_text="[rank1]: process was killed by SIGKILL",
    faulty_rank=1,
    faulty_node="node-a",
    action="restart_same_nodes",
    confidence=0.9,
    method="launcher",
    mitigation="Check the node's memory and its kernel log.",
)
STRAGGLER = AnomalyEvent(
    time=1_700_000_010.0,
    step=10,
    kind="straggler",
    onset_step=5,
    fatal=False,
    rank=1,
    node="node-a",
    message="rank 1 on node-a takes 1.9 times the median",
)


def loss_at(step: int) -> float:
    """The loss that every attempt has at this step."""
    return 8.0 / (1 + step / 40)


class SyntheticRun:
    """A run directory under construction; `clock` is the time that records carry."""

    def __init__(self, path: Path, *, steps: int = 200, clock: float = 1_700_000_000.0) -> None:
        self.run = RunDir(path)
        self.clock = clock
        path.mkdir(parents=True, exist_ok=True)
        config = {"name": path.name, "train": {"steps": steps}}
        self.run.config_path.write_text(yaml.safe_dump(config))

    def prepare(self) -> None:
        split = SplitRecord(
            prefix="train", documents=9800, tokens=1_200_000, sha256_bin="", sha256_idx=""
        )
        write_record(
            self.run.manifest_path,
            DataManifest(
                fingerprint="f",
                sources=[],
                documents_read=10_033,
                documents_empty=2,
                documents_duplicate=31,
                tokenizer_sha256="t",
                vocab_size=4096,
                end_of_text_id=0,
                train=split,
                validation=split.model_copy(update={"documents": 200, "tokens": 24_000}),
                bytes_per_token=3.9,
                created_at=self.clock,
                duration_s=11.0,
            ),
        )

    def submit(self, number: int) -> None:
        record = AttemptRecord(
            number=number,
            key=f"run/attempts/{number:03d}",
            job_id=str(4700 + number),
            submitted_at=self.clock,
        )
        write_record(self.run.attempt(number).record_path, record)

    def event(self, number: int, event: Record) -> None:
        append_json_line(self.run.attempt(number).events_path, event.model_dump())

    def start(
        self,
        number: int,
        step: int = 0,
        skipped: dict[str, str] | None = None,
        loaded_from: Literal["nothing", "memory", "storage"] = "nothing",
    ) -> None:
        self.event(
            number,
            StartEvent(
                time=self.clock,
                step=step,
                checkpoint=f"step_{step:08d}" if step else None,
                skipped_checkpoints=skipped or {},
                world_size=2,
                device="cpu",
                precision="fp32",
                num_parameters=1_330_000,
                padded_vocab_size=4096,
                loaded_from=loaded_from,
            ),
        )

    def step(self, number: int, step: int, *, seconds: float = 0.5) -> None:
        self.clock += seconds
        self.event(
            number,
            StepEvent(
                time=self.clock,
                step=step,
                loss=loss_at(step),
                grad_norm=1.0,
                learning_rate=1e-3,
                step_time_s=seconds,
                tokens_per_s=2048 / seconds,
            ),
        )

    def validate(self, number: int, step: int) -> None:
        event = ValidationEvent(
            time=self.clock, step=step, loss=loss_at(step) + 0.1, duration_s=1.0
        )
        self.event(number, event)

    def commit(self, number: int, step: int) -> None:
        self.checkpoint_files(number, step)
        event = CheckpointEvent(
            time=self.clock, step=step, outcome="committed", duration_s=0.5, size_bytes=43_100_000
        )
        self.event(number, event)

    def checkpoint_files(self, number: int, step: int) -> None:
        write_record(
            self.run.checkpoint(step).path / COMMIT_MARKER_NAME,
            CommitMarker(
                step=step,
                consumed_samples=16 * step,
                model_fingerprint="m",
                padded_vocab_size=4096,
                files={"__0_0.distcp": FileRecord(size_bytes=43_100_000, sha256="0")},
                attempt=number,
                parallel={"tensor": 1, "pipeline": 1, "data": 2},
                committed_at=self.clock,
                duration_s=0.5,
            ),
        )

    def fail_save(self, number: int, step: int) -> None:
        event = CheckpointEvent(
            time=self.clock,
            step=step,
            outcome="failed",
            duration_s=0.1,
            error="No space left on device",
        )
        self.event(number, event)

    def inject(self, number: int, step: int) -> None:
        self.event(number, FaultEvent(time=self.clock, step=step, rank=1, kind="kill"))

    def end(self, number: int, outcome: str, **fields: object) -> None:
        path = self.run.attempt(number).record_path
        record = self.run.attempt(number).record()
        assert record is not None
        changes = {"outcome": outcome, "ended_at": self.clock, **fields}
        write_record(path, record.model_copy(update=changes))

    def decide(self, number: int, *, stop: bool = False, verdict: Verdict = KILLED) -> None:
        attempt = self.run.attempt(number)
        write_record(attempt.verdict_path, verdict)
        reason = "the budget of 3 restarts for NodeFailure is spent" if stop else "restart 1 of 10"
        action = Action(kind=verdict.action, stop=stop, reason=reason, decided_at=self.clock)
        write_record(attempt.action_path, action)

    def train(self, number: int, first: int, last: int, *, every: int = 50) -> None:
        """Steps with a validation and a committed checkpoint after each `every`th."""
        for step in range(first, last + 1):
            self.step(number, step)
            if step % every == 0:
                self.validate(number, step)
                self.commit(number, step)

    def crash(self, number: int) -> None:
        """Rank 1 is killed; the flow restarts the run."""
        self.end(number, "failed", signal=9)
        self.decide(number)

    def score(
        self,
        step: int,
        accuracy: float = 0.25,
        tasks: int = 2,
        failed: dict[str, str] | None = None,
    ) -> None:
        names = ["heldout_cloze", "heldout_perplexity", "heldout_continuation", "heldout_copy"]
        names += [f"custom_task_number_{i}" for i in range(tasks - len(names))]
        metrics = {"heldout_perplexity": "bits_per_byte,none", "heldout_copy": "exact_match,none"}
        scores = [
            Score(
                task=name,
                metric=metrics.get(name, "acc,none"),
                value=3.0 - accuracy if name == "heldout_perplexity" else accuracy,
                stderr=0.0213,
            )
            for name in names[:tasks]
        ]
        write_record(
            self.run.evaluation(step).scores_path,
            EvaluationScores(
                step=step,
                scores=scores,
                failed=failed or {},
                tasks=names[:tasks],
                checkpoint=self.run.checkpoint(step).identity() or "",
                plan_sha256="p",
                ended_at=self.clock,
            ),
        )

    def regress(self, step: int, *, since: int, unhealthy: bool = False) -> None:
        found = Regression(
            task="heldout_cloze",
            metric="acc,none",
            value=0.1,
            usual=0.3,
            worse_by=0.2,
            limit=0.05,
            deviation=0.01,
            higher_is_better=True,
            since_step=since,
        )
        report = RegressionReport(
            step=step,
            checkpoint=self.run.checkpoint(step).identity() or "",
            compared_with=[50, 100],
            regressions=[found],
            unhealthy=unhealthy,
            judged_at=self.clock,
        )
        write_record(self.run.evaluation(step).regressions_path, report)

    def leave_out(self, step: int) -> None:
        record = EvaluationLeftOut(step=step, waiting=7, left_out_at=self.clock)
        write_record(self.run.evaluation(step).left_out_path, record)

    def begin_evaluation(self, step: int, stage: str = "export") -> None:
        self.run.evaluation(step).job_dir(f"{stage}-1").mkdir(parents=True, exist_ok=True)

    def fail_evaluation(self, step: int) -> None:
        failure = EvaluationFailure(
            step=step, stage="infer", reason="exit code 1", failed_at=self.clock
        )
        write_record(self.run.evaluation(step).failure_path, failure)


def crashed_and_recovered(path: Path) -> SyntheticRun:
    """A finished run of 200 steps: killed before step 130, continued from step 100."""
    made = SyntheticRun(path)
    made.prepare()
    made.submit(1)
    made.start(1)
    made.train(1, 1, 129)
    made.inject(1, 130)
    made.crash(1)
    made.submit(2)
    made.start(2, step=100)
    made.train(2, 101, 200)
    made.end(2, "completed", exit_code=0)
    for number, step in enumerate((50, 100, 150, 200)):
        made.score(step, accuracy=0.2 + 0.05 * number, tasks=4)
    return made
