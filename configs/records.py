"""Types of the files that stages leave in the run directory for each other.

Each is JSON that a person can read. Times are Unix seconds, sizes bytes.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A file's (or line's) content; fields added by newer versions are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")


# --- data/manifest.json ---------------------------------------------------------------------------


class SourceRecord(Record):
    """One input file of the corpus."""

    name: str
    size_bytes: int
    sha256: str
    documents: int


class SplitRecord(Record):
    """One Megatron data set: PREFIX.bin and PREFIX.idx under data/."""

    prefix: str
    documents: int
    tokens: int
    sha256_bin: str
    sha256_idx: str


class DataManifest(Record):
    """What prepare made, out of what. Written last: a data folder without it does not exist."""

    fingerprint: str
    """SHA-256 over sources and data config: equal means nothing needs to be prepared again."""
    config: dict[str, Any] = {}
    """The settings that it was prepared for, by their dotted keys."""
    sources: list[SourceRecord]
    documents_read: int
    documents_empty: int
    documents_duplicate: int
    tokenizer_sha256: str
    vocab_size: int
    end_of_text_id: int
    train: SplitRecord
    validation: SplitRecord
    bytes_per_token: float
    created_at: float
    duration_s: float


# --- checkpoints/step_N/COMMITTED.json ------------------------------------------------------------


class FileRecord(Record):
    """A checkpoint's file, relative to its folder."""

    size_bytes: int
    sha256: str


class CommitMarker(Record):
    """Written last, after every rank's files are durable: a checkpoint without it does not exist."""

    step: int
    consumed_samples: int
    model_fingerprint: str
    """SHA-256 over the model section, the padded vocabulary and the tokenizer."""
    model: dict[str, int | float] = {}
    """The model section of the config."""
    tokenizer_sha256: str = ""
    padded_vocab_size: int
    files: dict[str, FileRecord]
    attempt: int
    parallel: dict[str, int]
    """tensor, pipeline and data sizes at the save, and distributed_optimizer as 0 or 1."""
    precision: str = ""
    """bf16 or fp32: what the optimizer's state was kept for."""
    save_id: str = ""
    """Names the save that wrote it."""
    storage: str | None = None
    """URL of the folder that holds the files; None: the marker's own folder."""
    committed_at: float
    duration_s: float

    @property
    def size_bytes(self) -> int:
        """Total size of the checkpoint's files."""
        return sum(file.size_bytes for file in self.files.values())


# --- attempts/N/{attempt,verdict,action}.json -----------------------------------------------------

ActionKind = Literal[
    "restart_same_nodes",
    "restart_exclude_node",
    "rollback_skip_data",
    "resubmit_later",
    "fix_by_user",
    "none",
]


class Verdict(Record):
    """What failed, where and why, with the line that it rests on."""

    failure_class: str
    """One of the failure classes of docs/architecture.md."""
    category: Literal["infrastructure", "framework", "script", "scheduler", "anomaly", "none"]
    root_cause_file: str | None = None
    """Log file, relative to the attempt's folder."""
    root_cause_line: int | None = None
    """1-based."""
    root_cause_text: str = ""
    faulty_rank: int | None = None
    faulty_node: str | None = None
    action: ActionKind
    confidence: float
    method: str
    """What decided: the rule's name, monitor, launcher, or diagnosis_failed."""
    evidence: list[str] = []
    mitigation: str = ""
    """Advice in at most two sentences."""


class Action(Record):
    """What is done about a verdict, within the budgets."""

    kind: ActionKind
    stop: bool
    """The run ends here: a person is needed, or a budget is spent."""
    reason: str
    """One sentence."""
    wait_s: float = 0.0
    exclude_nodes: list[str] = []
    rollback_to_step: int | None = None
    """For rollback_skip_data: checkpoints and snapshots of later steps, made so far, are void."""
    skip_samples: list[tuple[int, int]] = []
    """For rollback_skip_data: positions in the training data that are not trained on again, from
    (included) to (excluded)."""
    decided_at: float


class AttemptRecord(Record):
    """One submission of the training job. `outcome` is None while it may still run."""

    number: int
    key: str
    job_id: str
    submitted_at: float
    ended_at: float | None = None
    outcome: Literal["completed", "failed", "cancelled", "stopped"] | None = None
    """stopped: it was asked to stop, has saved, and can be continued."""
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    """The launcher's or the monitor's words, like TIMEOUT or 'no step for 600 s'."""
    hung: bool = False
    nodes: list[str] = []


# --- evaluations/step_N/{export,scores,failure}.json ----------------------------------------------


class ExportRecord(Record):
    """What was exported, and how long that took (export.json). Written last."""

    checkpoint: str = ""
    """SHA-256 of the checkpoint's commit marker: the same step may be saved again later."""
    started_at: float
    ended_at: float


class Score(Record):
    """One metric of one task."""

    task: str
    metric: str
    """lm-eval's name with its filter, like `acc,none`."""
    value: float
    stderr: float | None = None
    samples: int = 0
    higher_is_better: bool | None = None
    """As its task says; None: it does not, or the tasks of a group differ."""


class EvaluationScores(Record):
    """All scores of one checkpoint. Written last: its presence means the evaluation is done."""

    step: int
    scores: list[Score]
    failed: dict[str, str] = {}
    """Task or group that could not be scored -> why. The others' scores stand."""
    tasks: list[str]
    checkpoint: str = ""
    """SHA-256 of the commit marker of the checkpoint that was evaluated."""
    plan_sha256: str
    export_s: float = 0.0
    infer_s: float = 0.0
    """Wall time in which a worker loaded the model or answered."""
    score_s: float = 0.0
    """Wall time of scoring beside that: targets are scored while others are answered."""
    started_at: float = 0.0
    ended_at: float = 0.0


class EvaluationFailure(Record):
    """Why a checkpoint has no scores (failure.json). A later run tries again."""

    step: int
    stage: str
    """export, infer or score."""
    reason: str
    failed_at: float


# --- summary.json ---------------------------------------------------------------------------------


class Goodput(Record):
    """Where the wall time of the training went. Shares of the whole are `x_s / wall_s`."""

    wall_s: float
    productive_s: float
    """Steps that count: each once."""
    recomputed_s: float
    """Steps that were computed again after a failure."""
    checkpoint_s: float
    validation_s: float
    startup_s: float
    """From each submission to its first step: imports, build, load."""
    detection_s: float
    """From the last sign of life of a failed attempt to its end."""
    restart_s: float
    """From a failed attempt's end to the next submission: diagnosis, back-off."""
    other_s: float = 0.0
    """Gaps between steps, the end of a completed attempt. All parts together are wall_s."""
    goodput: float
    """productive_s / wall_s."""
