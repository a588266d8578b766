"""Which saved states belong to the run as it stands, and which a rollback has made void.

A rollback to step S says: what was saved so far of later steps was trained on the way into a loss
spike. It counts no more, wherever it is kept. What later attempts save of the same steps does count.
"""

from __future__ import annotations

from dataclasses import dataclass

from configs.records import CommitMarker
from configs.rundir import CheckpointDir, RunDir


@dataclass(frozen=True)
class Rollback:
    """One rollback: of the attempts up to `attempt`, what is later than `to_step` is void."""

    attempt: int
    to_step: int
    skip_samples: tuple[tuple[int, int], ...] = ()
    """Positions in the training data that no later attempt trains on."""


@dataclass(frozen=True)
class Lineage:
    """All rollbacks of a run."""

    rollbacks: tuple[Rollback, ...] = ()

    def is_void(self, *, attempt: int, step: int) -> bool:
        """Whether the state of `step` that `attempt` saved was rolled back."""
        return any(attempt <= past.attempt and step > past.to_step for past in self.rollbacks)

    @property
    def skip_samples(self) -> list[tuple[int, int]]:
        """Positions in the training data that are left out, each from (included) to (excluded)."""
        return sorted({span for past in self.rollbacks for span in past.skip_samples})


def lineage_of(run: RunDir) -> Lineage:
    """Read the rollbacks that the run's actions decided.

    Those of a stop count too: whoever starts the run again starts from before the anomaly.
    """
    return Lineage(
        tuple(
            Rollback(
                attempt.number,
                action.rollback_to_step,
                tuple((first, end) for first, end in action.skip_samples),
            )
            for attempt in run.attempts()
            if (action := attempt.action()) is not None and action.rollback_to_step is not None
        )
    )


def valid_checkpoints(run: RunDir) -> list[tuple[CheckpointDir, CommitMarker]]:
    """The committed checkpoints that no rollback has made void, in order of steps."""
    lineage = lineage_of(run)
    return [
        (checkpoint, marker)
        for checkpoint in run.committed_checkpoints()
        if (marker := checkpoint.marker()) is not None
        and not lineage.is_void(attempt=marker.attempt, step=marker.step)
    ]
