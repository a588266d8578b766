"""The job of the checkpoint benchmark, one process under torchrun; see bench_checkpoint.py.

python -m tasks.train.bench_checkpoint_worker FOLDER --saves N
"""

from __future__ import annotations

import argparse
import logging
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from configs.files import write_json
from configs.rundir import RunDir
from configs.schema import RunConfig
from configs.shapes import count_parameters, padded_vocab_size
from tasks.train import distributed
from tasks.train.attempt import build_state
from tasks.train.bench_checkpoint import RESULT_FILE, vocab_size
from tasks.train.bench_checkpoint_overland import OverlandArm
from tasks.train.bench_checkpoint_peers import (
    Arm,
    asynchronous_peers,
    synchronous_candidates,
)
from tasks.train.bench_checkpoint_rounds import (
    Bench,
    SaveTime,
    StepTime,
    measure_rounds,
    summarize,
)
from tasks.train.bench_checkpoint_verify import digest_of_state, verify
from tasks.train.bench_estimate import collector_off
from tasks.train.data import Batch
from tasks.train.distributed import World
from tasks.train.job import log_to
from tasks.train.loop import forward_step
from tasks.train.mcore import get_forward_backward_func
from tasks.train.state import TrainingState

logger = logging.getLogger(__name__)

SYNCHRONOUS = "synchronous"
_WARM_UP_STEPS = 3
_CANDIDATE_SAVES = 2


def measure(run: RunDir, config: RunConfig, saves: int) -> dict[str, Any]:
    """Measure in this process."""
    world = distributed.start(config)
    state = build_state(config, vocab_size(config), world)
    bench = make_bench(state, config, world)
    bench.quiet_steps(_WARM_UP_STEPS)
    base = run.path / "saves"
    with collector_off():
        synchronous, first = _fastest(bench, synchronous_candidates(state, base))
        overland = OverlandArm(run, config, state, world)
        peers = asynchronous_peers(state, base)
        arms: dict[str, Arm] = {SYNCHRONOUS: synchronous, **peers, overland.name: overland}
        verified = dict.fromkeys(arms, 0)
        around = _verifier(state, world, verified, rounds={0, saves})
        measured = measure_rounds(bench, arms, 1 + saves, around)
        # The chosen synchronous arm had its first save when it was chosen.
        measured[SYNCHRONOUS][0] = first
        for arm in peers.values():
            arm.close()
        # One more save, to restart from.
        saved = digest_of_state(state)
        bench.save(overland)
        overland.close()
    quiet = [times.quiet_step_s for saves_ in measured.values() for times in saves_[1:]]
    parameters = count_parameters(config.model, padded_vocab_size(vocab_size(config)))
    result = {
        **summarize(measured, SYNCHRONOUS),
        "synchronous_by": synchronous.name,
        "model_parameters": parameters,
        "state_bytes": digest_of_state(state).size_bytes,
        "step_s": statistics.median(quiet),
        "saves": saves,
        "threads": torch.get_num_threads(),
        "device": world.device_name,
        "precision": world.precision,
        "verified_saves": verified,
        "saved_digest": asdict(saved),
    }
    distributed.stop()
    return result


def make_bench(state: TrainingState, config: RunConfig, world: World) -> Bench:
    """Real steps of megatron-core on random tokens, timed with the device at rest."""
    batches = _random_batches(config, world)
    forward_backward = get_forward_backward_func()
    count = config.train.global_batch_size // config.train.micro_batch_size

    def now() -> float:
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def step(before_optimizer: Callable[[], None]) -> StepTime:
        started = now()
        state.ddp.zero_grad_buffer()
        state.optimizer.zero_grad()
        forward_backward(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=[state.ddp],
            num_microbatches=count,
            seq_length=config.model.sequence_length,
            micro_batch_size=config.train.micro_batch_size,
            forward_only=False,
        )
        waits_from = now()
        before_optimizer()
        waited = time.perf_counter() - waits_from
        state.schedule.step(increment=1)
        state.optimizer.step()
        state.step += 1
        state.consumed_samples += config.train.global_batch_size
        return StepTime(now() - started - waited, waited)

    return Bench(step, now, lambda: state.step)


def _fastest(bench: Bench, candidates: list[Arm]) -> tuple[Arm, SaveTime]:
    """The candidate with the fastest second save, and the times of its first one."""
    found: list[tuple[float, Arm, SaveTime]] = []
    for arm in candidates:
        times: list[SaveTime] = []
        for _ in range(_CANDIDATE_SAVES):
            saved, step = bench.save(arm)
            times.append(saved)
            shutil.rmtree(arm.folder(step))
            bench.quiet_steps(1)
        logger.info("%s: %s", arm.name, [save.blocked_s for save in times])
        found.append((times[-1].blocked_s, arm, times[0]))
    _, fastest, first = min(found, key=lambda candidate: candidate[0])
    return fastest, first


def _verifier(
    state: TrainingState, world: World, verified: dict[str, int], rounds: set[int]
) -> Callable[[str, Arm, int], Callable[[int], None]]:
    """Reads each arm's save back in the given rounds."""

    def before(name: str, arm: Arm, turn: int) -> Callable[[int], None]:
        if turn not in rounds:
            return lambda _: None
        expected = digest_of_state(state)

        def after(step: int) -> None:
            verify(name, arm.folder(step), expected, world.control)
            verified[name] += 1

        return after

    return before


def _random_batches(config: RunConfig, world: World) -> Iterator[Batch]:
    length, size = config.model.sequence_length, config.train.micro_batch_size
    random = torch.Generator().manual_seed(config.seed)
    positions = torch.arange(length, device=world.device).expand(size, -1)
    while True:
        row = torch.randint(1, vocab_size(config), (size, length + 1), generator=random)
        row = row.to(world.device)
        yield {"tokens": row[:, :-1], "labels": row[:, 1:], "position_ids": positions}


def main() -> int:
    """Measure, and leave the result in the folder."""
    parser = argparse.ArgumentParser(description="The job of the checkpoint benchmark.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--saves", type=int, required=True)
    options = parser.parse_args()
    run = RunDir(options.folder)
    log_to(run.attempt(1).rank_log(0))
    config = RunConfig.model_validate_json(run.attempt(1).config_path.read_bytes())
    write_json(run.path / RESULT_FILE, measure(run, config, options.saves))
    return 0


if __name__ == "__main__":
    sys.exit(main())
