"""Tells what training does: events for the flow and MLflow, lines for people. Rank 0's work."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from configs.events import (
    CheckpointEvent,
    EndEvent,
    SnapshotEvent,
    StartEvent,
    StepEvent,
    ValidationEvent,
)
from configs.records import CommitMarker
from configs.schema import RunConfig
from tasks.train.checkpoint_load import Resumption
from tasks.train.distributed import World
from tasks.train.events import EventLog
from tasks.train.flops import flops_per_token, peak_flops, utilisation
from tasks.train.state import TrainingState

logger = logging.getLogger(__name__)


class Report:
    """Appends the events of one attempt; ranks other than 0 say nothing."""

    def __init__(
        self,
        config: RunConfig,
        world: World,
        state: TrainingState,
        marker: CommitMarker,
        events: EventLog,
    ) -> None:
        self._steps = config.train.steps
        self._world = world
        self._state = state
        self._padded_vocab_size = marker.padded_vocab_size
        self._events = events
        self._tokens_per_step = config.train.global_batch_size * config.model.sequence_length
        self._flops_per_token = flops_per_token(config.model, marker.padded_vocab_size)
        self._peak = peak_flops(config.train, world.device_name, world.precision)

    def start(self, resumption: Resumption, num_parameters: int) -> None:
        """The state is loaded and training begins."""
        if not self._world.is_main:
            return
        loaded = resumption.checkpoint
        self._events.append(
            StartEvent(
                time=time.time(),
                step=self._state.step,
                checkpoint=loaded.path.name if loaded else None,
                skipped_checkpoints=resumption.skipped,
                world_size=self._world.size,
                device=self._world.device_name,
                precision=self._world.precision,
                num_parameters=num_parameters,
                padded_vocab_size=self._padded_vocab_size,
                load_time_s=resumption.load_time_s,
                loaded_from=resumption.source,
            )
        )
        logger.info(
            "training %d parameters on %d x %s in %s, from %s",
            num_parameters,
            self._world.size,
            self._world.device_name,
            self._world.precision,
            resumption,
        )

    def step(self, loss: float, grad_norm: float, duration_s: float, waited_s: float) -> None:
        """A step has ended; `waited_s` of it the optimizer waited for a snapshot."""
        if not self._world.is_main:
            return
        step, rate = self._state.step, float(self._state.optimizer.param_groups[0]["lr"])
        tokens_per_s = self._tokens_per_step / duration_s
        self._events.append(
            StepEvent(
                time=time.time(),
                step=step,
                loss=loss,
                grad_norm=grad_norm,
                learning_rate=rate,
                step_time_s=duration_s,
                tokens_per_s=tokens_per_s,
                mfu=utilisation(tokens_per_s, self._flops_per_token, self._peak, self._world.size),
                snapshot_wait_s=waited_s,
            )
        )
        logger.info(
            "step %d/%d loss %.6f grad_norm %.4f learning_rate %.3e step_time_s %.3f tokens_per_s %.0f",
            step,
            self._steps,
            loss,
            grad_norm,
            rate,
            duration_s,
            tokens_per_s,
        )

    def validation(self, loss: float, duration_s: float) -> None:
        """A validation has ended."""
        if not self._world.is_main:
            return
        self._events.append(
            ValidationEvent(
                time=time.time(), step=self._state.step, loss=loss, duration_s=duration_s
            )
        )
        logger.info("step %d validation loss %.6f", self._state.step, loss)

    def snapshot(self, event: SnapshotEvent) -> None:
        """A snapshot was begun, or left out."""
        if self._world.is_main:
            self._events.append(event)

    def checkpoints(self, events: Iterable[CheckpointEvent]) -> None:
        """Saves have ended in the background."""
        if not self._world.is_main:
            return
        for event in events:
            self._events.append(event)

    def end(self, stopped_by: str) -> None:
        """The job ends by itself: at its last step, or since it was asked to."""
        if not self._world.is_main:
            return
        step = self._state.step
        self._events.append(
            EndEvent(
                time=time.time(),
                step=step,
                reason="stopped" if stopped_by else "finished",
                stopped_by=stopped_by,
            )
        )
        if stopped_by:
            logger.info("training stops at step %d, as asked by %s", step, stopped_by)
        else:
            logger.info("training has reached its last step, %d", step)
