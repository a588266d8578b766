"""Types of the lines in attempts/N/events.jsonl: what the training job tells, in order.

Times are Unix seconds, sizes bytes. Rank 0 writes all but the faults of other ranks.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from configs.records import Record


class StartEvent(Record):
    """The model is built and a checkpoint, if any, is loaded."""

    event: Literal["start"] = "start"
    time: float
    step: int
    """Last finished step: 0, or the loaded checkpoint's."""
    checkpoint: str | None
    """Folder name of the loaded checkpoint."""
    skipped_checkpoints: dict[str, str] = Field(default_factory=dict)
    """Folder name -> why it was passed over."""
    world_size: int
    device: str
    precision: str
    num_parameters: int
    padded_vocab_size: int
    load_time_s: float = 0.0
    loaded_from: Literal["nothing", "memory", "storage"] = "nothing"


class StepEvent(Record):
    """One optimizer step."""

    event: Literal["step"] = "step"
    time: float
    step: int
    loss: float
    """Mean cross-entropy per token over the global batch, in nats."""
    grad_norm: float
    """Global norm before clipping."""
    learning_rate: float
    step_time_s: float
    tokens_per_s: float
    mfu: float | None = None
    """Model FLOPs utilisation, where the device's peak is known."""
    snapshot_wait_s: float = 0.0
    """Part of the step in which the optimizer waited for a snapshot's copy to end."""


class ValidationEvent(Record):
    """Validation loss after a step."""

    event: Literal["validation"] = "validation"
    time: float
    step: int
    loss: float
    duration_s: float


class SnapshotEvent(Record):
    """A copy of the training state was begun in memory, or left out since no buffer was free."""

    event: Literal["snapshot"] = "snapshot"
    time: float
    step: int
    outcome: Literal["begun", "skipped"]
    blocked_s: float
    """Time that training was held up to begin it; what it waited at the optimizer is the step's."""
    size_bytes: int = 0
    """What this rank copies."""


class CheckpointEvent(Record):
    """A save to storage has ended, in the background: committed, or given up."""

    event: Literal["checkpoint"] = "checkpoint"
    time: float
    step: int
    outcome: Literal["committed", "failed"]
    duration_s: float
    """From the snapshot to the commit."""
    waited_s: float = 0.0
    """Time that training stood still for it: at the last step, and when it is asked to stop."""
    size_bytes: int = 0
    error: str = ""

    @property
    def is_background(self) -> bool:
        """Whether it says nothing about training: writing goes on while training hangs."""
        return not self.waited_s


class AnomalyEvent(Record):
    """Something goes wrong without failing."""

    event: Literal["anomaly"] = "anomaly"
    time: float
    step: int
    """When it was found."""
    kind: Literal["loss_spike", "nonfinite", "straggler", "replica_mismatch"]
    onset_step: int
    """The first step that was struck."""
    fatal: bool
    """Whether the job ends itself over it."""
    rank: int | None = None
    node: str | None = None
    message: str
    """One sentence with the numbers."""


class FaultEvent(Record):
    """A configured fault is about to be injected."""

    event: Literal["fault"] = "fault"
    time: float
    step: int
    rank: int
    kind: str


class EndEvent(Record):
    """The job ends by itself; its exit code follows."""

    event: Literal["end"] = "end"
    time: float
    step: int
    reason: Literal["finished", "stopped"] = "finished"
    """stopped: it was asked to, has saved, and can be continued."""
    stopped_by: str = ""
    """What asked: a signal's name, or `stop file`."""


Event = Annotated[
    StartEvent
    | StepEvent
    | ValidationEvent
    | SnapshotEvent
    | CheckpointEvent
    | AnomalyEvent
    | FaultEvent
    | EndEvent,
    Field(discriminator="event"),
]
event_adapter: TypeAdapter[Event] = TypeAdapter(Event)
