"""What our training loop costs over a bare megatron-core loop.

    python -m tasks.train.bench [--steps N] [--processes N]

One torchrun job trains one model on random tokens with steps of two loops in turn: ours (with the
loss reduced over ranks, events, log lines and fault checks) and a bare one (what one would write
straight on megatron-core: gradients, optimizer, schedule, this rank's loss). Model, optimizer and
data are the same objects in both, so what differs is the loop. The overhead is estimated from pairs
of steps that ran next to each other; a third arm, bare again, is compared with the bare one in the
same way and tells how much of it is noise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.errors import RunFailedError
from configs.rundir import RunDir
from configs.schema import LauncherConfig, ModelConfig, ParallelConfig, RunConfig, TrainConfig

ARMS = ("ours", "bare", "bare_again")
WARM_UP_STEPS = 5
RESULT_FILE = "bench.json"


def bench_train(
    *, steps: int = 300, processes: int = 2, config: RunConfig | None = None
) -> dict[str, Any]:
    """Measure `steps` steps of each arm in one torchrun job on this machine.

    Returns ours_step_s, bare_step_s (medians), overhead (0.02: two percent) with the 95 % interval
    from overhead_low to overhead_high, noise (the overhead of the bare loop over itself), steps,
    model_parameters and processes. `config` changes model and batch; its parallel sizes must fit
    `processes`.
    """
    config = config or default_config(processes)
    # Enough samples for all arms.
    total = len(ARMS) * (steps + WARM_UP_STEPS)
    train = config.train.model_copy(update={"steps": total})
    config = config.model_copy(update={"train": train})
    with tempfile.TemporaryDirectory(prefix="overland-bench-") as folder:
        run = RunDir(Path(folder))
        attempt = run.attempt(1)
        attempt.path.mkdir(parents=True)
        attempt.config_path.write_text(config.model_dump_json())
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={processes}", "--max-restarts=0"),
            *("-m", "tasks.train.bench_worker", folder, "--steps", str(steps)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            logs = [path.read_text()[-2000:] for path in sorted(attempt.path.glob("rank_*.log"))]
            raise RunFailedError(
                "\n".join(["the benchmark job failed", done.stderr[-2000:], *logs])
            )
        result: dict[str, Any] = json.loads((run.path / RESULT_FILE).read_text())
    return result


def default_config(processes: int) -> RunConfig:
    """A model whose step takes about 0.1 s on two CPU cores: short, for many pairs in few minutes."""
    return RunConfig(
        name="bench",
        model=ModelConfig(num_layers=4, hidden_size=256, ffn_hidden_size=688, sequence_length=128),
        parallel=ParallelConfig(data=processes),
        train=TrainConfig(global_batch_size=processes, micro_batch_size=1),
        launcher=LauncherConfig(processes_per_node=processes),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description="Our training loop against a bare one.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    print(json.dumps(bench_train(steps=options.steps, processes=options.processes), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
