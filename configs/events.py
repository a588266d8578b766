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


class ValidationEvent(Record):
    """Validation loss after a step."""

    event: Literal["validation"] = "validation"
    time: float
    step: int
    loss: float
    duration_s: float


class CheckpointEvent(Record):
    """A save has ended: committed, or given up."""

    event: Literal["checkpoint"] = "checkpoint"
    time: float
    step: int
    outcome: Literal["committed", "failed"]
    duration_s: float
    """Time that training was held up."""
    size_bytes: int = 0
    error: str = ""


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


Event = Annotated[
    StartEvent | StepEvent | ValidationEvent | CheckpointEvent | FaultEvent | EndEvent,
    Field(discriminator="event"),
]
event_adapter: TypeAdapter[Event] = TypeAdapter(Event)
