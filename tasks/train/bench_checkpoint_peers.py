"""The ways to save that `overland bench checkpoint` compares, each used as its makers recommend.

All save the same tensors (weights, Adam's moments, master weights where there are any) to the same
disk in the same format, with the files synced.

- `DcpSync` and `MegatronSync`: the faster of the two is the synchronous save.
- `DcpAsync`: `async_save` with one `DefaultStager` for all saves, which keeps its buffers: pinned
  memory and copies without waiting on GPUs, shared memory for the process. Writer and plans are kept
  too. Measured in two ways: with the copy awaited at once, which is what the documentation has for
  CPUs, and with the copy beside the next forward and backward pass and the optimizer waiting for it,
  as torchtitan does on GPUs. The way that loses less time counts.
- `MegatronAsync`: `AsyncCallsQueue`, the save spread over data-parallel ranks, plans and metadata
  kept, finished between steps. A persistent worker on GPUs. Not on CPUs, where megatron-core's wants
  a CUDA device, and would share the very tensors that training changes: there a forked process sees
  them as they were.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import (
    AsyncCheckpointerType,
    AsyncSaveResponse,
    async_save,
    save,
)

from tasks.train.mcore import (
    AsyncCallsQueue,
    FullyParallelSaveStrategyWrapper,
    dist_checkpointing,
    parallel_state,
    torch_strategy,
    without_megatron_warnings,
)
from tasks.train.state import TrainingState, sharded_state


class Arm(Protocol):
    """One way to save. Training stands still while any of these methods runs."""

    @property
    def name(self) -> str: ...

    def begin(self, step: int) -> None:
        """Save the state, or begin to."""

    def before_optimizer(self) -> None:
        """Called in every step, right before the optimizer changes the state."""

    def poll(self) -> bool:
        """Called after every step of a save: finish what is to be finished; True when it is whole."""

    def folder(self, step: int) -> Path:
        """Where the files of this step's save are."""

    def close(self) -> None:
        """Free buffers and end processes."""


def plain_state(state: TrainingState) -> dict[str, Any]:
    """The training state as one would give it to torch's distributed checkpoint: no copies."""
    weights = dict(state.ddp.module.named_parameters())
    ids = {id(weight) for weight in weights.values()}
    moments: dict[str, torch.Tensor] = {}
    for index, part in enumerate(state.optimizer.chained_optimizers):
        adam = part.optimizer
        for order, parameter in enumerate(
            p for group in adam.param_groups for p in group["params"]
        ):
            if id(parameter) not in ids:
                moments[f"{index}.{order}.master"] = parameter
            for name, value in adam.state[parameter].items():
                if isinstance(value, torch.Tensor):
                    moments[f"{index}.{order}.{name}"] = value
    return {
        "model": {name: weight.detach() for name, weight in weights.items()},
        "optimizer": {name: value.detach() for name, value in moments.items()},
        "schedule": state.schedule.state_dict(),
        "random_state": torch.get_rng_state(),
        "step": state.step,
        "consumed_samples": state.consumed_samples,
    }


class _Base:
    """Name, state and folders; by default a save is whole when `begin` returns."""

    def __init__(self, name: str, state: TrainingState, base: Path) -> None:
        self.name = name
        self._state = state
        self._base = base

    def before_optimizer(self) -> None:
        return None

    def poll(self) -> bool:
        return True

    def folder(self, step: int) -> Path:
        return self._base / self.name / f"step_{step:08d}"

    def close(self) -> None:
        return None

    def _new_folder(self, step: int) -> Path:
        folder = self.folder(step)
        folder.mkdir(parents=True)
        return folder


class DcpSync(_Base):
    """`torch.distributed.checkpoint.save`."""

    def __init__(self, state: TrainingState, base: Path, *, files: int) -> None:
        super().__init__(f"torch dcp.save, {files} file{'s' * (files > 1)}", state, base)
        self._writer = FileSystemWriter(base, thread_count=files)

    def begin(self, step: int) -> None:
        save(
            plain_state(self._state),
            checkpoint_id=self._new_folder(step),
            storage_writer=self._writer,
            planner=DefaultSavePlanner(enable_plan_caching=True),
        )


class MegatronSync(_Base):
    """megatron-core's `dist_checkpointing.save`."""

    def __init__(self, state: TrainingState, base: Path) -> None:
        super().__init__("megatron-core dist_checkpointing.save", state, base)
        self._strategy = _megatron_strategy()
        self._validated = False

    @without_megatron_warnings()
    def begin(self, step: int) -> None:
        dist_checkpointing.save(
            sharded_state(self._state, is_loading=False),
            str(self._new_folder(step)),
            self._strategy,
            validate_access_integrity=not self._validated,
        )
        self._validated = True


class DcpAsync(_Base):
    """`torch.distributed.checkpoint.async_save`, with a thread or a process that writes."""

    def __init__(self, state: TrainingState, base: Path, kind: AsyncCheckpointerType) -> None:
        super().__init__(f"dcp_async_{kind.value}", state, base)
        cuda = torch.cuda.is_available()
        self._kind = kind
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=cuda,
                use_shared_memory=kind is AsyncCheckpointerType.PROCESS,
                use_async_staging=True,
                use_non_blocking_copy=cuda,
            )
        )
        # Its collectives run beside training's, so it has a group of its own.
        self._group = dist.new_group(backend="gloo")
        self._writer = FileSystemWriter(base)
        self._staged: Future[None] | None = None
        self._saved: Future[None] | None = None

    def begin(self, step: int) -> None:
        response = async_save(
            plain_state(self._state),
            checkpoint_id=self._new_folder(step),
            storage_writer=self._writer,
            planner=DefaultSavePlanner(enable_plan_caching=True),
            process_group=self._group,
            async_checkpointer_type=self._kind,
            async_stager=self._stager,
        )
        assert isinstance(response, AsyncSaveResponse)
        self._staged, self._saved = response.staging_completion, response.upload_completion

    def before_optimizer(self) -> None:
        if self._staged is not None:
            self._staged.result()
            self._staged = None

    def poll(self) -> bool:
        if self._saved is None or not self._saved.done():
            return False
        self._saved.result()
        self._saved = None
        return True

    def close(self) -> None:
        self._stager.close()


class CopyAwaited:
    """The same save with the copy awaited at once: training stands still, and nothing competes with it."""

    def __init__(self, inner: DcpAsync) -> None:
        self.name = inner.name
        self.folder = inner.folder
        self.poll = inner.poll
        self._inner = inner

    def begin(self, step: int) -> None:
        self._inner.begin(step)
        self._inner.before_optimizer()

    def before_optimizer(self) -> None:
        return None

    def close(self) -> None:
        return None


class MegatronAsync(_Base):
    """megatron-core's own asynchronous save."""

    def __init__(self, state: TrainingState, base: Path) -> None:
        super().__init__("megatron_async", state, base)
        self._strategy = _megatron_strategy()
        self._queue = AsyncCallsQueue(persistent=torch.cuda.is_available())
        self._validated = False

    @without_megatron_warnings()
    def begin(self, step: int) -> None:
        request = dist_checkpointing.save(
            sharded_state(self._state, is_loading=False),
            str(self._new_folder(step)),
            self._strategy,
            validate_access_integrity=not self._validated,
            async_sharded_save=True,
        )
        self._validated = True
        self._queue.schedule_async_request(request)

    def poll(self) -> bool:
        self._queue.maybe_finalize_async_calls(blocking=False)
        return not self._queue.get_num_unfinalized_calls()

    def close(self) -> None:
        self._queue.close()


def synchronous_candidates(state: TrainingState, base: Path) -> list[Arm]:
    """Ways to save synchronously; the fastest here is what the others are compared with."""
    return [
        DcpSync(state, base, files=1),
        DcpSync(state, base, files=2),
        MegatronSync(state, base),
    ]


def asynchronous_peers(state: TrainingState, base: Path) -> dict[str, Arm]:
    """The others' asynchronous saves: `name`, or `name: way` where one is used in two ways."""
    arms: dict[str, Arm] = {}
    for kind in (AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS):
        overlapped = DcpAsync(state, base, kind)
        arms[f"{overlapped.name}: copy awaited"] = CopyAwaited(overlapped)
        arms[f"{overlapped.name}: copy overlapped"] = overlapped
    megatron = MegatronAsync(state, base)
    return {**arms, megatron.name: megatron}


def _megatron_strategy() -> Any:
    """As Megatron-LM sets it up with --ckpt-fully-parallel-save --ckpt-assume-constant-structure."""
    return FullyParallelSaveStrategyWrapper(
        torch_strategy.TorchDistSaveShardedStrategy("torch_dist", 1, cached_metadata=True),
        parallel_state.get_data_parallel_group(with_context_parallel=True),
        do_cache_distribution=True,
    )
