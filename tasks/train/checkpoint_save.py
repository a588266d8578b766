"""Saves the training state without holding training up.

    begin()             the state is copied to a buffer while the next forward and backward pass run;
                        the thread that copies then hands it to the writer process
    before_optimizer()  the optimizer waits for what is not copied by then
    poll()              after each step: hears what became of earlier saves
    finish()            at the end: saves, and waits until it is committed

A save is committed or it does not exist, and whatever happens to one costs this save and not the
run. A snapshot that is due while no buffer is free on some rank is left out, on all of them.
"""

from __future__ import annotations

import base64
import io
import logging
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from configs.events import CheckpointEvent, SnapshotEvent
from configs.records import CommitMarker
from configs.rundir import AttemptDir, RunDir
from configs.schema import RunConfig
from tasks.train.buffers import Buffer, SnapshotBuffers
from tasks.train.checkpoint_format import SaveRequest
from tasks.train.chunks import chunks_of
from tasks.train.distributed import World
from tasks.train.memory_load import new_token, open_buffers
from tasks.train.moment import CommonTemplate, Moment
from tasks.train.node_memory import Snapshot
from tasks.train.snapshot import make_copier, refresh_random_state
from tasks.train.state import TrainingState
from tasks.train.storage import checkpoint_url
from tasks.train.writer_process import SaveEnd, WriterProcess

logger = logging.getLogger(__name__)

_POLL_INTERVAL_S = 0.02

FullDisk = Callable[[int], bool]
"""Whether this rank's file of a step's checkpoint is to meet a full disk: an injected fault."""


class Checkpointer:
    """Takes one rank's snapshots and has them written. All ranks call the same methods in step."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDir,
        world: World,
        state: TrainingState,
        buffers: SnapshotBuffers,
        marker: CommitMarker,
        *,
        token: str,
        full_disk: FullDisk = lambda step: False,
        stored_step: int = 0,
    ) -> None:
        """`stored_step`: the step that was loaded, if storage has it."""
        self._config = config
        self._settings = config.checkpoint
        self._run = run
        self._world = world
        self._state = state
        self._buffers = buffers
        self._marker = marker
        self._token = token
        self._full_disk = full_disk
        self._stored_step = stored_step
        self._copied_bytes = sum(chunk.size_bytes for chunk in buffers.layout.chunks)
        self._copier = make_copier(world.device)
        self._copying: list[Buffer] = []
        """What is being copied into, until the writer has it or the snapshot stays in memory."""
        self._common: CommonTemplate | None = None
        self.failed_step = 0
        """Step of the newest save that this rank could not take part in."""
        if world.device.type == "cuda":
            for buffer in buffers.all:
                buffer.pin()
        self._writer = WriterProcess(
            setup=self._writer_setup(),
            start_timeout_s=self._settings.writer_start_timeout_s,
            save_timeout_s=self._settings.save_timeout_s,
            save_attempts=self._settings.save_attempts,
        )
        self._writer.start()
        self._has_pages = False

    @property
    def is_busy(self) -> bool:
        """Whether all buffers hold what is not in storage yet."""
        return self._free_buffer() is None

    def begin(self, *, for_storage: bool = True) -> SnapshotEvent:
        """Begin to copy the state of now, to become a checkpoint or to stay in memory. A buffer must be
        free on all ranks."""
        started = time.monotonic()
        buffer = self._free_buffer()
        assert buffer is not None
        buffer.empty()
        refresh_random_state(self._buffers.layout)
        if self._common is None:
            self._common = CommonTemplate(self._state)
        moment, begun_at = Moment.of(self._state), time.time()
        full_disk = for_storage and self._full_disk(moment.step)

        def copied() -> None:
            buffer.fill(self._snapshot(moment))
            if for_storage:
                self._writer.save(self._request(buffer, moment, begun_at, full_disk=full_disk))
            self._copying.remove(buffer)

        self._copying.append(buffer)
        self._copier.begin(buffer, self._buffers.layout, copied)
        return self._event("begun", time.monotonic() - started)

    def save_loaded(self) -> None:
        """Save the snapshot that training was just restarted from, if storage does not have it."""
        step = self._state.step
        if step == self._stored_step or not self._settings.is_due_in_storage(step):
            return
        self._common = CommonTemplate(self._state)
        buffer = self._buffers.snapshots()[step]
        self._writer.save(
            self._request(buffer, Moment.of(self._state), time.time(), full_disk=False)
        )

    def skipped(self) -> SnapshotEvent:
        """Say that a snapshot is left out."""
        logger.warning(
            "step %d: no snapshot, since no buffer is free: earlier ones are still being written",
            self._state.step,
        )
        return self._event("skipped", 0.0)

    def before_optimizer(self) -> float:
        """Keep the optimizer off what is not copied yet; returns the seconds that it waited."""
        return self._copier.before_optimizer()

    def poll(self) -> list[CheckpointEvent]:
        """See to the saves in the background; on rank 0 returns those that have ended."""
        ended = [self._ended(end) for end in self._writer.poll()]
        if not self._has_pages and self._writer.is_ready:
            self._has_pages = True
            self._buffers.map_pages()
        return ended

    def call_off(self, step: int) -> None:
        """Give up a save that some rank cannot take part in."""
        self._writer.call_off(self._save_id(step))

    def finish(self) -> list[CheckpointEvent]:
        """Save the state of now and wait for the commit; returns all saves that ended meanwhile.

        Every rank calls it. It ends within the limits of the saves that it waits for.
        """
        started = time.monotonic()
        events = self.drain()
        if self._is_committed_on_rank_0():
            return events
        self.begin()
        self._copier.wait()
        events += self.drain()
        waited_s = time.monotonic() - started
        return [
            event.model_copy(update={"waited_s": waited_s})
            if event.step == self._state.step
            else event
            for event in events
        ]

    def close(self, *, remove: bool) -> None:
        """End the writer; `remove` gives the memory back, for a run that needs no restart from it."""
        self._writer.kill()
        if remove:
            self._buffers.remove()

    def drain(self) -> list[CheckpointEvent]:
        """Wait, all ranks together, until no save is under way on any of them."""
        self._copier.wait()
        events = self.poll()
        while True:
            mine = [int(not self._writer.is_idle), self.failed_step]
            word = torch.tensor(mine, dtype=torch.int64)
            dist.all_reduce(word, op=dist.ReduceOp.MAX, group=self._world.control)
            is_waiting, failed_step = (int(value) for value in word)
            if failed_step:
                self.call_off(failed_step)
            if not is_waiting:
                return events
            time.sleep(_POLL_INTERVAL_S)
            events += self.poll()

    def _is_committed_on_rank_0(self) -> bool:
        if self._state.step == self._stored_step:
            return True
        marker = self._world.from_main(self._run.checkpoint(self._state.step).marker)
        return marker is not None and marker.attempt == self._marker.attempt

    def _free_buffer(self) -> Buffer | None:
        """A buffer that the writer does not need; of two, not the one with the newest snapshot."""
        in_use = self._writer.buffers_in_use()
        in_use |= {self._buffers.all.index(buffer) for buffer in tuple(self._copying)}
        free = [b for i, b in enumerate(self._buffers.all) if i not in in_use]
        newest = self._buffers.newest
        return next((b for b in free if b is not newest), free[0] if free else None)

    def _ended(self, end: SaveEnd) -> CheckpointEvent:
        request = end.request
        if end.error:
            self.failed_step = request.step
            logger.error(
                "checkpoint of step %d failed, training goes on: %s", request.step, end.error
            )
        elif self._world.is_main:
            logger.info("checkpoint of step %d committed: %d bytes", request.step, end.size_bytes)
        return CheckpointEvent(
            time=time.time(),
            step=request.step,
            outcome="failed" if end.error else "committed",
            duration_s=max(time.time() - request.begun_at, 0.0),
            size_bytes=end.size_bytes,
            error=end.error,
        )

    def _snapshot(self, moment: Moment) -> Snapshot:
        return Snapshot(
            step=moment.step,
            attempt=self._marker.attempt,
            token=self._token,
            consumed_samples=moment.consumed_samples,
            optimizer_step=moment.optimizer_step,
            schedule=moment.schedule,
        )

    def _request(
        self, buffer: Buffer, moment: Moment, begun_at: float, *, full_disk: bool
    ) -> SaveRequest:
        step, settings = moment.step, self._settings
        base = settings.storage
        return SaveRequest(
            save_id=self._save_id(step),
            step=step,
            buffer=self._buffers.all.index(buffer),
            folder=str(self._run.checkpoint(step).path),
            storage=checkpoint_url(base, self._config.name, step, self._marker.attempt)
            if base
            else None,
            begun_at=begun_at,
            attempts=settings.save_attempts,
            full_disk=full_disk,
            parts_timeout_s=self._settings.longest_save_s,
            **(self._main_part(moment) if self._world.is_main else {}),
        )

    def _main_part(self, moment: Moment) -> dict[str, Any]:
        assert self._common is not None
        content = io.BytesIO()
        torch.save(self._common.at(moment), content)
        marker = self._marker.model_copy(
            update={"step": moment.step, "consumed_samples": moment.consumed_samples}
        )
        return {"marker": marker, "common_base64": base64.b64encode(content.getvalue()).decode()}

    def _save_id(self, step: int) -> str:
        return f"{self._token}-{step}"

    def _writer_setup(self) -> dict[str, Any]:
        return {
            "rank": self._world.rank,
            "ranks": self._world.size,
            "run_dir": str(self._run.path),
            "config": self._config.model_dump(mode="json"),
            "table": self._buffers.layout.table(),
            "buffers": [str(buffer.path) for buffer in self._buffers.all],
            "size_bytes": self._buffers.layout.size_bytes,
        }

    def _event(self, outcome: Any, blocked_s: float) -> SnapshotEvent:
        return SnapshotEvent(
            time=time.time(),
            step=self._state.step,
            outcome=outcome,
            blocked_s=blocked_s,
            size_bytes=self._copied_bytes,
        )


def new_checkpointer(
    config: RunConfig,
    run: RunDir,
    attempt: AttemptDir,
    world: World,
    state: TrainingState,
    marker: CommitMarker,
) -> Checkpointer:
    """The checkpointer of a state that was not loaded from anywhere."""
    buffers = open_buffers(config.checkpoint, run, world, chunks_of(state))
    token = new_token(attempt, world)
    return Checkpointer(config, run, world, state, buffers, marker, token=token)
