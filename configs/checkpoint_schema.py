"""The `checkpoint:` section of the config."""

from __future__ import annotations

from typing import Literal

from configs.sections import NonNegativeInt, PositiveFloat, PositiveInt, Section

_WRITER_START_S = 30.0


class CheckpointConfig(Section):
    """When the training state is copied, where it is kept, and for how long.

    A snapshot is a copy in the node's memory, made while training goes on. A checkpoint is a snapshot
    that was written to storage and committed.
    """

    interval_steps: PositiveInt = 200
    """Steps from one checkpoint in storage to the next."""
    memory_interval_steps: PositiveInt | None = None
    """Steps from one snapshot in memory to the next; None: only those that become checkpoints."""
    memory: Literal["auto", "on", "off"] = "auto"
    """Whether snapshots outlive a crashed process, in /dev/shm. auto: where it is large enough."""
    memory_limit_gib: PositiveFloat | None = None
    """Most that the snapshot buffers may take on a node; None: what is free."""
    buffers: Literal[1, 2] = 2
    """Snapshots that a process holds: with 2, one can be taken while the last is still being written."""
    storage: str | None = None
    """Where the tensors go: a URL that fsspec knows, like s3://BUCKET/PREFIX. None: the run directory."""
    wait_for_commit: bool = False
    """True: training stands still until each checkpoint is committed, as without a background."""
    save_timeout_s: PositiveFloat = 600.0
    """A save that takes longer is given up; training goes on."""
    save_attempts: PositiveInt = 3
    """How often a process tries to write its part of one checkpoint."""
    keep_last: PositiveInt | None = None
    """Keep the newest K checkpoints (and those that another rule keeps); None: all."""
    keep_every_steps: PositiveInt | None = None
    """With keep_last: also keep every checkpoint whose step is a multiple of this."""
    keep_best: NonNegativeInt = 0
    """With keep_last: also keep this many with the best `keep_best_metric`."""
    keep_best_metric: str = "heldout_perplexity/word_perplexity,none"
    """TASK/METRIC of the evaluation, as in scores.json."""
    keep_best_mode: Literal["min", "max"] = "min"
    """Whether a small or a large value is the better one."""

    def is_due(self, step: int) -> bool:
        """Whether a snapshot is to be taken after this step."""
        interval = self.memory_interval_steps
        return self.is_due_in_storage(step) or (interval is not None and step % interval == 0)

    def is_due_in_storage(self, step: int) -> bool:
        """Whether this step's snapshot is to become a checkpoint."""
        return step % self.interval_steps == 0

    @property
    def writer_start_timeout_s(self) -> float:
        """A writer process that is not ready by then is replaced: imports take seconds, on a busy node more."""
        return max(_WRITER_START_S, self.save_timeout_s)

    @property
    def longest_save_s(self) -> float:
        """All attempts at one save, each by a writer that has to start first."""
        return self.save_attempts * (self.writer_start_timeout_s + self.save_timeout_s)
