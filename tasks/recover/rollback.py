"""Going back behind an anomaly: to which checkpoint, and without which data. Pure.

A rollback for a loss spike goes to the newest checkpoint from before the spike and leaves out the
data from there to where it was found. When the loss spikes again no later than that, the damage is
older, or not in the data: the next rollback goes one checkpoint further back, until the budget ends.
Checkpoints whose scores have regressed are passed over, where the config marks them as not healthy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from configs.events import AnomalyEvent
from configs.lineage import lineage_of, valid_checkpoints
from configs.records import Action
from configs.rundir import RunDir
from configs.samples import SampleStream
from configs.schema import RecoveryConfig, TrainConfig


@dataclass(frozen=True)
class SavedState:
    """A checkpoint: its step and its position in the data."""

    step: int
    position: int
    healthy: bool = True


BEGINNING = SavedState(0, 0)


@dataclass(frozen=True)
class Ground:
    """What there is to go back to, and the order in which the run reads its data."""

    saved: tuple[SavedState, ...]
    """The checkpoints that count, in order of steps."""
    stream: SampleStream

    @property
    def newest_step(self) -> int:
        return self.saved[-1].step if self.saved else 0

    def before(self, step: int) -> list[SavedState]:
        """What was saved before a step, the newest first and the beginning last; what is not healthy
        only where nothing else is, for it is better than the beginning."""
        earlier = [state for state in reversed(self.saved) if state.step < step]
        healthy = [state for state in earlier if state.healthy]
        return [*(healthy or earlier), BEGINNING]

    def healthy_step(self, anomaly: AnomalyEvent) -> int:
        """The newest step that was saved before an anomaly began."""
        return self.before(anomaly.onset_step)[0].step

    def position_after(self, state: SavedState, step: int) -> int:
        """Position in the data once `step` is done, starting from a saved state."""
        return self.stream.after(state.position, batches=step - state.step)


@dataclass(frozen=True)
class PastRollback:
    """A rollback that was decided on, and what for."""

    anomaly: AnomalyEvent
    action: Action


def ground_of(run: RunDir, train: TrainConfig) -> Ground:
    """Read the run's checkpoints and what it skips."""
    saved = tuple(
        SavedState(
            marker.step,
            marker.consumed_samples,
            healthy=not run.evaluation(marker.step).is_unhealthy(),
        )
        for _, marker in valid_checkpoints(run)
    )
    return Ground(saved, SampleStream.of(train, lineage_of(run).skip_samples))


def roll_back_and_skip(
    anomaly: AnomalyEvent,
    past: Sequence[PastRollback],
    config: RecoveryConfig,
    ground: Ground,
    now: float,
) -> Action:
    """What to do about a loss spike, after the rollbacks for spikes that were tried before."""
    if len(past) >= config.max_rollbacks:
        return Action(
            kind="fix_by_user",
            stop=True,
            reason=_not_cured(anomaly, past),
            # Whoever starts the run again, with other settings, starts from before the spike.
            rollback_to_step=ground.healthy_step(anomaly),
            decided_at=now,
        )
    here = [before for before in past if anomaly.onset_step <= before.anomaly.step]
    failed = [before.action.rollback_to_step or 0 for before in here]
    target = ground.before(min([anomaly.onset_step, *failed]))[0]
    end = ground.position_after(target, anomaly.step)
    return Action(
        kind="rollback_skip_data",
        stop=False,
        reason=(
            f"rollback {len(past) + 1} of {config.max_rollbacks} to {_name(target.step)}, without the "
            f"data of steps {target.step + 1} to {anomaly.step} (samples {target.position} to {end}): "
            f"{anomaly.message}"
        ),
        rollback_to_step=target.step,
        skip_samples=[(target.position, end)],
        decided_at=now,
    )


def _not_cured(anomaly: AnomalyEvent, past: Sequence[PastRollback]) -> str:
    if not past:
        return f"recovery.max_rollbacks = 0 allows no rollback: {anomaly.message}"
    tried = ", ".join(
        f"from step {before.anomaly.step} to {_name(before.action.rollback_to_step or 0)} without "
        f"{sum(end - first for first, end in before.action.skip_samples)} samples"
        for before in past
    )
    count = "1 rollback is" if len(past) == 1 else f"all {len(past)} rollbacks are"
    return (
        f"{count} used up ({tried}), and skipping data did not cure the loss: look at the learning "
        f"rate, its warm-up and the model; {anomaly.message}"
    )


def _name(step: int) -> str:
    return f"step {step}" if step else "the beginning"
