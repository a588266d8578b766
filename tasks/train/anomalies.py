"""Watches a training for what goes wrong without failing: losses, slow ranks, weights that differ.

All ranks come to the same findings at the same step; rank 0 puts them on record. A loss spike or
differing weights end the job: the recovery goes back to a state from before, which the job cannot.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
import torch.distributed as dist

from configs.errors import AnomalyError
from configs.events import AnomalyEvent, StartEvent, StepEvent
from configs.rundir import AttemptDir, RunDir
from configs.schema import RunConfig
from tasks.train.distributed import World
from tasks.train.events import EventLog
from tasks.train.optimizer import before_reduction
from tasks.train.replicas import ReplicaCheck
from tasks.train.spikes import Spike, SpikeDetector
from tasks.train.state import TrainingState
from tasks.train.stragglers import Straggler, StragglerWatch

logger = logging.getLogger(__name__)

_TAIL_BYTES = 1 << 20
"""End of an event file that mostly holds all steps that are asked for."""


class AnomalyWatch:
    """Asked around each step, on all ranks."""

    def __init__(
        self, config: RunConfig, run: RunDir, world: World, state: TrainingState, events: EventLog
    ) -> None:
        """Make it once the state is loaded."""
        self._config = config
        self._world = world
        self._events = events
        self._enabled = config.anomalies.enabled
        self._spikes = SpikeDetector(config.anomalies)
        self._stragglers = StragglerWatch(config.anomalies, world)
        self._replicas = ReplicaCheck(world, state.ddp.module)
        self._equal_until = state.step
        """The last step at which the replicas are known to have been equal."""
        self._nodes: list[str] = []
        if not self._enabled:
            return
        self._spikes.warm_up(_agree_on_past_losses(run, world, state.step, config))
        self._nodes = _gather_nodes(world)
        before_reduction(state.ddp, self._stragglers.clock.stop)

    def step_begins(self) -> None:
        """Before anything of a step is done."""
        if self._enabled:
            self._stragglers.clock.begin()

    def step_done(self, step: int, loss: float, grad_norm: float, *, is_last: bool = False) -> None:
        """After the optimizer's step and before anything is saved. Raises AnomalyError on all ranks.

        `is_last` says that training is asked to stop, and saves.
        """
        if not self._enabled:
            return
        spike = self._spikes.see(step, loss, grad_norm)
        if spike is not None:
            self._end_over_spike(step, spike)
        if self._compares_ranks(step):
            for straggler in self._stragglers.compare():
                self._report_straggler(step, straggler)
        if self._compares_replicas(step, is_last=is_last):
            if suspects := self._replicas.compare():
                self._end_over_replicas(step, suspects)
            self._equal_until = step

    def _compares_ranks(self, step: int) -> bool:
        interval = self._config.anomalies.straggler_interval_steps
        return self._world.size > 1 and interval > 0 and step % interval == 0

    def _compares_replicas(self, step: int, *, is_last: bool) -> bool:
        """At its interval, and before each checkpoint: what is saved is what the replicas agree on."""
        interval = self._config.anomalies.replica_check_interval_steps
        if interval == 0 or self._world.data_size == 1:
            return False
        saves = self._config.checkpoint.is_due_in_storage(step) or is_last
        return step % interval == 0 or saves or step == self._config.train.steps

    def _end_over_spike(self, step: int, spike: Spike) -> None:
        self._record(step, spike.kind, spike.onset_step, spike.message, fatal=True)
        raise AnomalyError(spike.message)

    def _end_over_replicas(self, step: int, suspects: list[int]) -> None:
        onset = self._equal_until + 1
        message = self._describe(suspects, step)
        rank = suspects[0] if len(suspects) == 1 else None
        self._record(step, "replica_mismatch", onset, message, fatal=True, rank=rank)
        raise AnomalyError(message)

    def _describe(self, suspects: list[int], step: int) -> str:
        named = " and ".join(f"rank {rank} on {self._nodes[rank]}" for rank in suspects)
        since = f"at step {step} (they were equal at step {self._equal_until})"
        if len(suspects) == 1:
            return f"the weights of {named} differ from those of its replicas {since}"
        return f"the weights of {named} differ {since}, with no majority to tell which is right"

    def _report_straggler(self, step: int, straggler: Straggler) -> None:
        message = (
            f"rank {straggler.rank} on {self._nodes[straggler.rank]} computes "
            f"{straggler.busy_s:.3f} s in a step, the median rank {straggler.usual_s:.3f} s"
        )
        onset = max(step - self._config.anomalies.straggler_interval_steps, 0) + 1
        self._record(step, "straggler", onset, message, fatal=False, rank=straggler.rank)

    def _record(
        self,
        step: int,
        kind: Any,
        onset: int,
        message: str,
        *,
        fatal: bool,
        rank: int | None = None,
    ) -> None:
        if not self._world.is_main:
            return
        logger.warning("%s at step %d: %s", kind, step, message)
        self._events.append(
            AnomalyEvent(
                time=time.time(),
                step=step,
                kind=kind,
                onset_step=onset,
                fatal=fatal,
                rank=rank,
                node=None if rank is None else self._nodes[rank],
                message=message,
            )
        )


def past_losses(run: RunDir, step: int, count: int) -> list[float]:
    """The last losses up to a step, of the run as it stands: each step as it was computed last."""
    losses: list[float] = []
    for attempt in reversed(run.attempts()):
        if len(losses) >= count or step <= 0:
            break
        started, own = _losses_of(attempt, step, count - len(losses))
        losses = own + losses
        step = min(step, started)
    return losses


def _losses_of(attempt: AttemptDir, step: int, count: int) -> tuple[int, list[float]]:
    """The step that an attempt started from, and its last losses up to a step."""
    path = attempt.events_path
    size_bytes = path.stat().st_size if path.exists() else 0
    for offset_bytes in (size_bytes - _TAIL_BYTES, 0):
        if offset_bytes < 0:
            continue
        events, _ = attempt.events_from(offset_bytes)
        losses = [e.loss for e in events if isinstance(e, StepEvent) and e.step <= step]
        if len(losses) >= count:
            break
    started = next((e.step for e in events if isinstance(e, StartEvent)), step)
    return started, losses[-count:]


def _agree_on_past_losses(run: RunDir, world: World, step: int, config: RunConfig) -> list[float]:
    """Rank 0 reads them for all: others may see the files late."""
    count = config.anomalies.spike_window_steps
    told = torch.zeros(1 + count, dtype=torch.float64)
    if world.is_main:
        losses = past_losses(run, step, count)
        told[: 1 + len(losses)] = torch.tensor([len(losses), *losses], dtype=torch.float64)
    dist.broadcast(told, src=0, group=world.control)
    found: list[float] = told[1 : 1 + int(told[0])].tolist()
    return found


def _gather_nodes(world: World) -> list[str]:
    """Each rank's node, by the name that launchers know."""
    nodes: list[Any] = [""] * world.size
    dist.all_gather_object(nodes, world.node, group=world.control)
    return nodes
