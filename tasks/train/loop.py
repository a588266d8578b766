"""The training loop: steps, validation, checkpoints, and the events that tell of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist

from configs.events import CheckpointEvent, EndEvent, StartEvent, StepEvent, ValidationEvent
from configs.records import CommitMarker
from configs.rundir import RunDir
from configs.schema import RunConfig
from tasks.train.checkpoint_load import Resumption
from tasks.train.checkpoint_save import SaveOutcome, Saver
from tasks.train.data import Batch, Datasets, MicroBatches, micro_batch_count
from tasks.train.distributed import World
from tasks.train.events import EventLog
from tasks.train.faults import Faults
from tasks.train.flops import flops_per_token, peak_flops, utilisation
from tasks.train.mcore import get_forward_backward_func, parallel_state
from tasks.train.state import TrainingState, sharded_state

logger = logging.getLogger(__name__)

_Loss = dict[str, torch.Tensor]
_LossOutput = tuple[torch.Tensor, _Loss]


def forward_step(
    batches: Iterator[Batch], model: torch.nn.Module
) -> tuple[torch.Tensor, partial[_LossOutput]]:
    """One micro-batch through this rank's part of the model, as megatron-core's schedules call it."""
    batch = next(batches)
    output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, partial(mean_loss)


def mean_loss(token_losses: torch.Tensor) -> _LossOutput:
    """Mean loss per token, to differentiate and to report.

    The schedules divide the first by the number of micro-batches in place: the second is a copy.
    """
    loss = token_losses.float().mean()
    return loss, {"loss": loss.detach().clone()}


class Trainer:
    """Trains from the state that it is given to the last step."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDir,
        world: World,
        state: TrainingState,
        datasets: Datasets,
        marker: CommitMarker,
        events: EventLog,
        faults: Faults,
    ) -> None:
        self._config = config
        self._run = run
        self._world = world
        self._state = state
        self._datasets = datasets
        self._marker = marker
        self._events = events
        self._faults = faults
        self._saver = Saver(world, timeout_s=config.checkpoint.save_timeout_s)
        self._schedule = get_forward_backward_func()
        self._micro_batches = micro_batch_count(config)
        self._tokens_per_step = config.train.global_batch_size * config.model.sequence_length
        self._flops_per_token = flops_per_token(config.model, marker.padded_vocab_size)
        self._peak = peak_flops(config.train, world.device_name, world.precision)

    def run(self, resumption: Resumption, num_parameters: int) -> None:
        """Train to the last step, validating and saving on the way."""
        self._report_start(resumption, num_parameters)
        state, train = self._state, self._config.train
        batches = MicroBatches(
            self._datasets.train,
            self._config,
            self._world,
            consumed_samples=state.consumed_samples,
        )
        while state.step < train.steps:
            self.step(batches)
            last = state.step == train.steps
            if last or state.step % train.validation_interval_steps == 0:
                self.validate()
            if last or state.step % self._config.checkpoint.interval_steps == 0:
                self.save()
        if self._world.is_main:
            self._events.append(EndEvent(time=time.time(), step=state.step))
            logger.info("training has reached its last step, %d", state.step)

    def step(self, batches: Iterator[Batch]) -> None:
        """One step and its report, with the fault that the config wants before it."""
        self._faults.before_step(self._state.step + 1)
        started = time.monotonic()
        loss, grad_norm = self.train_step(batches)
        if self._world.is_main:
            self._report_step(loss, grad_norm, time.monotonic() - started)

    def train_step(self, batches: Iterator[Batch]) -> tuple[float, float]:
        """One optimizer step; returns the global batch's loss and gradient norm, on all ranks."""
        state, train = self._state, self._config.train
        state.ddp.zero_grad_buffer()
        state.optimizer.zero_grad()
        losses = self._pass(batches, self._micro_batches, forward_only=False)
        reduction = self._reduce(losses)
        state.schedule.step(increment=1)
        _, grad_norm, _ = state.optimizer.step()
        state.step += 1
        state.consumed_samples += train.global_batch_size
        return self._reduced(*reduction), float(grad_norm)

    def validate(self) -> float:
        """Loss over the same held-out batches every time."""
        started = time.monotonic()
        train = self._config.train
        batches = MicroBatches(self._datasets.validation, self._config, self._world)
        self._state.ddp.eval()
        losses = self._pass(
            batches, self._micro_batches * train.validation_batches, forward_only=True
        )
        self._state.ddp.train()
        loss = self._reduced(*self._reduce(losses))
        if self._world.is_main:
            duration = time.monotonic() - started
            self._events.append(
                ValidationEvent(
                    time=time.time(), step=self._state.step, loss=loss, duration_s=duration
                )
            )
            logger.info("step %d validation loss %.6f", self._state.step, loss)
        return loss

    def save(self) -> SaveOutcome:
        """Save a checkpoint; a failed save is reported and training goes on."""
        started = time.monotonic()
        step = self._state.step
        marker = self._marker.model_copy(
            update={"step": step, "consumed_samples": self._state.consumed_samples}
        )
        outcome = self._saver.save(
            self._run.checkpoint(step),
            sharded_state(self._state, is_loading=False),
            marker,
            partial(self._faults.before_write, step),
        )
        if self._world.is_main:
            self._report_save(outcome, time.monotonic() - started)
        return outcome

    def _pass(self, batches: Iterator[Batch], count: int, *, forward_only: bool) -> list[_Loss]:
        losses: list[_Loss] = self._schedule(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=[self._state.ddp],
            num_microbatches=count,
            seq_length=self._config.model.sequence_length,
            micro_batch_size=self._config.train.micro_batch_size,
            forward_only=forward_only,
        )
        return losses

    def _reduce(self, losses: list[_Loss]) -> tuple[torch.Tensor, dist.Work | None]:
        """Begin to take the mean over micro-batches and data-parallel ranks.

        Begun right after the gradients, which just brought the ranks together, and awaited after
        the optimizer, it keeps no rank waiting.
        """
        if not losses:
            return torch.zeros((), device=self._world.device), None
        loss = torch.stack([reported["loss"] for reported in losses]).mean()
        work = dist.all_reduce(loss, group=parallel_state.get_data_parallel_group(), async_op=True)
        return loss, work

    def _reduced(self, loss: torch.Tensor, work: dist.Work | None) -> float:
        """The global batch's loss, on all ranks; the last pipeline stage tells the others."""
        if work is not None:
            work.wait()
            loss /= self._world.data_size
        if self._config.parallel.pipeline > 1:
            dist.broadcast(
                loss,
                src=parallel_state.get_pipeline_model_parallel_last_rank(),
                group=parallel_state.get_pipeline_model_parallel_group(),
            )
        return float(loss)

    def _report_step(self, loss: float, grad_norm: float, duration_s: float) -> None:
        step, rate = self._state.step, self._learning_rate()
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
            )
        )
        logger.info(
            "step %d/%d loss %.6f grad_norm %.4f learning_rate %.3e step_time_s %.3f tokens_per_s %.0f",
            step,
            self._config.train.steps,
            loss,
            grad_norm,
            rate,
            duration_s,
            tokens_per_s,
        )

    def _learning_rate(self) -> float:
        return float(self._state.optimizer.param_groups[0]["lr"])

    def _report_start(self, resumption: Resumption, num_parameters: int) -> None:
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
                padded_vocab_size=self._marker.padded_vocab_size,
                load_time_s=resumption.load_time_s,
            )
        )
        logger.info(
            "training %d parameters on %d x %s in %s, from %s",
            num_parameters,
            self._world.size,
            self._world.device_name,
            self._world.precision,
            f"checkpoint {loaded.path.name}" if loaded else "the start",
        )

    def _report_save(self, outcome: SaveOutcome, duration_s: float) -> None:
        step = self._state.step
        self._events.append(
            CheckpointEvent(
                time=time.time(),
                step=step,
                outcome="failed" if outcome.error else "committed",
                duration_s=duration_s,
                size_bytes=outcome.size_bytes,
                error=outcome.error,
            )
        )
        if outcome.error:
            logger.error("checkpoint of step %d failed, training goes on: %s", step, outcome.error)
        else:
            logger.info(
                "checkpoint of step %d committed: %d bytes in %.3f s",
                step,
                outcome.size_bytes,
                duration_s,
            )
