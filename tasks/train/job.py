"""The training job: what torchrun starts on every rank.

    python -m tasks.train.job RUN_DIR --attempt N

Reads attempts/NNN/config.json, data/ and checkpoints/; writes checkpoints/, attempts/NNN/events.jsonl
and one log per rank, attempts/NNN/rank_RRRRR.log, into which all output goes from the first line on.
Exit code 0 means that the last step is done and nothing else does; 75, that the job was asked to
stop, has saved, and can be continued.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from configs.rundir import RunDir
from tasks.train import collectives


def main(arguments: Sequence[str] | None = None) -> int:
    """Run this rank of the job."""
    parser = argparse.ArgumentParser(
        description="One rank of a training job; start it by torchrun."
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--attempt", type=int, required=True)
    options = parser.parse_args(arguments)
    run = RunDir(options.run_dir.absolute())
    attempt = run.attempt(options.attempt)
    rank = int(os.environ["RANK"])
    log_to(attempt.rank_log(rank))
    collectives.answer_requests(rank)
    # Only now: a rank that fails to import torch or megatron-core must say so in its log.
    from tasks.train.attempt import train_attempt

    return train_attempt(run, attempt)


def log_to(path: Path) -> None:
    """Send this process's standard output and error to `path`, line by line, and log there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    # The launcher's agent asks for stacks so where it may not read them itself.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )
    logging.getLogger("megatron").setLevel(logging.WARNING)
    # megatron-core warns of its own old names on every call, torch of megatron-core's.
    warnings.filterwarnings("ignore", module=r"megatron\.")
    for message in ("Please use DTensor instead", "`torch.distributed.* is deprecated"):
        warnings.filterwarnings("ignore", message, FutureWarning)


if __name__ == "__main__":
    sys.exit(main())
