"""The training loop: steps, validation, snapshots, until the last step or a request to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist

from configs.errors import EXIT_CONTINUE, EXIT_OK, AnomalyError
from configs.records import CommitMarker
from configs.rundir import RunDir
from configs.samples import SampleStream, Span
from configs.schema import RunConfig
from tasks.train.anomalies import AnomalyWatch
from tasks.train.checkpoint_load import Resumption
from tasks.train.checkpoint_save import Checkpointer
from tasks.train.control import STOP_REASONS, Control, Word
from tasks.train.data import Batch, Datasets, MicroBatches, micro_batch_count
from tasks.train.distributed import World
from tasks.train.events import EventLog
from tasks.train.faults import Faults
from tasks.train.mcore import get_forward_backward_func, parallel_state
from tasks.train.optimizer import before_reduction
from tasks.train.progress import Progress
from tasks.train.report import Report
from tasks.train.state import TrainingState

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
        checkpointer: Checkpointer,
        *,
        skip_samples: Sequence[Span] = (),
        stop_requested: Callable[[], str] = str,
    ) -> None:
        """`skip_samples` are positions in the data that are left out; `stop_requested` says why this rank was asked to stop, one of STOP_REASONS."""
        self._config = config
        self._world = world
        self._state = state
        self._datasets = datasets
        self._faults = faults
        self._checkpointer = checkpointer
        self._stop_requested = stop_requested
        self._control = Control(world)
        self._word = Word()
        self._progress = Progress.open(world.rank)
        before_reduction(state.ddp, partial(self._progress.enter, "gradients"))
        self._report = Report(config, world, state, marker, events)
        self._watch = AnomalyWatch(config, run, world, state, events)
        self._stream = SampleStream.of(config.train, skip_samples)
        self._schedule = get_forward_backward_func()
        self._micro_batches = micro_batch_count(config)

    def run(self, resumption: Resumption, num_parameters: int) -> int:
        """Train to the last step, or until asked to stop; returns the exit code."""
        self._report.start(resumption, num_parameters)
        if resumption.source == "memory":
            self._checkpointer.save_loaded()
        state, train = self._state, self._config.train
        batches = MicroBatches(
            self._datasets.train,
            self._config,
            self._world,
            consumed_samples=state.consumed_samples,
            stream=self._stream,
        )
        stopped_by = ""
        while state.step < train.steps and not stopped_by:
            stopped_by = self.step(batches)
            is_last = state.step == train.steps
            if is_last or state.step % train.validation_interval_steps == 0:
                self.validate()
            if not is_last and not stopped_by:
                self.snapshot()
        self._progress.enter("save")
        self._report.checkpoints(self._checkpointer.finish())
        is_stopped = state.step < train.steps
        self._report.end(stopped_by if is_stopped else "")
        self._progress.enter("end")
        return EXIT_CONTINUE if is_stopped else EXIT_OK

    def step(self, batches: Iterator[Batch]) -> str:
        """One step and its report, with the fault that the config wants before it.

        Returns why training is to stop after it: empty when it is not.
        """
        self._progress.begin_step(self._state.step + 1)
        self._watch.step_begins()
        self._faults.before_step(self._state.step + 1, self._state.optimizer)
        started = time.monotonic()
        self._control.begin(
            Word(
                stop=STOP_REASONS.index(self._stop_requested()),
                busy=int(self._checkpointer.is_busy),
                failed_step=self._checkpointer.failed_step,
            )
        )
        loss, grad_norm, waited_s = self.train_step(batches)
        self._word = self._control.end()
        self._progress.enter("report")
        self._report.step(loss, grad_norm, time.monotonic() - started, waited_s)
        try:
            self._watch.step_done(self._state.step, loss, grad_norm, is_last=bool(self._word.stop))
        except AnomalyError:
            # What was saved before the anomaly is what training will go back to.
            self._progress.enter("save")
            self._report.checkpoints(self._checkpointer.drain())
            raise
        if self._word.failed_step:
            self._checkpointer.call_off(self._word.failed_step)
        self._report.checkpoints(self._checkpointer.poll())
        return STOP_REASONS[self._word.stop]

    def train_step(self, batches: Iterator[Batch]) -> tuple[float, float, float]:
        """One optimizer step; returns the global batch's loss and gradient norm, the same on all
        ranks, and the seconds that the optimizer waited for a snapshot."""
        state = self._state
        state.ddp.zero_grad_buffer()
        state.optimizer.zero_grad()
        self._progress.enter("forward_backward")
        losses = self._pass(batches, self._micro_batches, forward_only=False)
        reduction = self._reduce(losses)
        waited_s = self._checkpointer.before_optimizer()
        self._progress.enter("optimizer")
        state.schedule.step(increment=1)
        _, grad_norm, _ = state.optimizer.step()
        state.step += 1
        state.consumed_samples = self._stream.after(state.consumed_samples)
        return self._reduced(*reduction), float(grad_norm), waited_s

    def validate(self) -> float:
        """Loss over the same held-out batches every time."""
        self._progress.enter("validation")
        started = time.monotonic()
        train = self._config.train
        batches = MicroBatches(self._datasets.validation, self._config, self._world)
        self._state.ddp.eval()
        losses = self._pass(
            batches, self._micro_batches * train.validation_batches, forward_only=True
        )
        self._state.ddp.train()
        loss = self._reduced(*self._reduce(losses))
        self._report.validation(loss, time.monotonic() - started)
        return loss

    def snapshot(self) -> None:
        """Begin a snapshot if one is due, unless some rank has no buffer for it."""
        step, checkpointer, settings = self._state.step, self._checkpointer, self._config.checkpoint
        if not settings.is_due(step):
            return
        for_storage = settings.is_due_in_storage(step)
        if for_storage and settings.wait_for_commit:
            self._report.checkpoints(checkpointer.finish())
            return
        if self._word.busy:
            event = checkpointer.skipped()
        else:
            event = checkpointer.begin(for_storage=for_storage)
        self._report.snapshot(event)

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
