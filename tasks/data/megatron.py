"""Tokenized Megatron data sets: PREFIX.bin and PREFIX.idx for each split.

datatrove's MegatronDocumentTokenizer turns each shard of the cleaned corpus into a file pair; the
pairs of a split are then joined in the shards' order. Documents are encoded one by one, so the result
does not depend on how many processes did it.

Each process runs a LocalPipelineExecutor over its own range of shards. They are plain child processes
rather than that class's own pool, because a pool waits for ever when one of its processes is killed
(by the kernel, out of memory), and because it would fork a parent that runs threads.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from configs.errors import RunFailedError
from tasks.data.corpus import Split
from tasks.data.tokenizer import TOKENIZER_FILE

_PROJECT_ROOT = Path(__file__).resolve().parents[2]
_POLL_INTERVAL_S = 0.05
_COPY_BLOCK_BYTES = 1 << 20
# Megatron's index: magic, version, type code, number of sequences, number of document borders.
_INDEX_HEADER = struct.Struct("<9sQBQQ")
_INDEX_MAGIC = b"MMIDIDX\x00\x00"
_TOKEN_BYTES = {4: 4, 8: 2}


@dataclass(frozen=True)
class WorkerJob:
    """What one tokenizing process does: a contiguous range of the corpus' shards."""

    shards_dir: str
    output_dir: str
    logging_dir: str
    tokenizer_file: str
    end_of_text: str
    num_shards: int
    """All shards of the corpus."""
    first_shard: int
    count: int


@dataclass(frozen=True)
class TokenizedSplit:
    """What was written for one split."""

    documents: int
    tokens: int


def tokenize_splits(
    splits: list[Split],
    tokenizer_dir: Path,
    end_of_text: str,
    *,
    work_dir: Path,
    output_dir: Path,
    workers: int,
) -> list[TokenizedSplit]:
    """Write OUTPUT_DIR/NAME.bin and .idx for each split, through files in `work_dir`."""
    shards = sorted(shard for split in splits for shard in split.shards)
    jobs = [
        WorkerJob(
            shards_dir=str(shards[0].parent),
            output_dir=str(work_dir / "parts"),
            logging_dir=str(work_dir / f"log-{first}"),
            tokenizer_file=str(tokenizer_dir / TOKENIZER_FILE),
            end_of_text=end_of_text,
            num_shards=len(shards),
            first_shard=first,
            count=count,
        )
        for first, count in _ranges(len(shards), workers)
    ]
    _run_workers(jobs, work_dir)
    rank_of = {shard: rank for rank, shard in enumerate(shards)}
    return [
        _merge(
            [work_dir / "parts" / f"{rank_of[shard]:05d}_tokens" for shard in split.shards],
            output_dir / split.name,
            expected_documents=split.documents,
        )
        for split in splits
    ]


def _ranges(total: int, parts: int) -> list[tuple[int, int]]:
    """(first, count) of contiguous ranges of nearly equal size."""
    parts = min(parts, total)
    borders = [total * part // parts for part in range(parts + 1)]
    return [(first, after - first) for first, after in pairwise(borders)]


def _run_workers(jobs: list[WorkerJob], work_dir: Path) -> None:
    """Run one process per job; when one fails, the others are ended too."""
    with ExitStack() as stack:
        running: dict[subprocess.Popen[bytes], Path] = {}
        for job in jobs:
            log = work_dir / f"worker-{job.first_shard}.log"
            process = _start_worker(job, log)
            stack.callback(_end_worker, process)
            running[process] = log
        while running:
            time.sleep(_POLL_INTERVAL_S)
            for process in [p for p in running if p.poll() is not None]:
                log = running.pop(process)
                if process.returncode != 0:
                    raise RunFailedError(
                        f"a tokenizing process {_ending(process.returncode)}: {_last_line(log)}"
                    )


def _start_worker(job: WorkerJob, log: Path) -> subprocess.Popen[bytes]:
    paths = [str(_PROJECT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "TOKENIZERS_PARALLELISM": "false",
    }
    # -P: the current folder may hold names that would shadow libraries.
    command = [sys.executable, "-P", "-m", "tasks.data.tokenize_worker"]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            bufsize=0,
            start_new_session=True,
        )
    assert process.stdin is not None
    # stdin stays open after the job's line: it tells the process that its parent lives. A process
    # that died before it read the line is found by its exit code.
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
    return process


def _end_worker(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it forked, also when it has ended by itself."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _ending(returncode: int) -> str:
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"failed with exit code {returncode}"


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it wrote no log"


def _merge(parts: list[Path], prefix: Path, *, expected_documents: int) -> TokenizedSplit:
    """Join the file pairs `parts`, each document one sequence, and remove them."""
    lengths: list[npt.NDArray[np.int32]] = []
    type_code = 0
    with open(prefix.with_suffix(".bin"), "wb") as output:
        for part in parts:
            type_code, part_lengths = _read_index(part.with_suffix(".idx"))
            lengths.append(part_lengths)
            with open(part.with_suffix(".bin"), "rb") as content:
                shutil.copyfileobj(content, output, _COPY_BLOCK_BYTES)
            part.with_suffix(".bin").unlink()
    all_lengths = np.concatenate(lengths)
    if len(all_lengths) != expected_documents:
        raise RunFailedError(
            f"{prefix.name}: {len(all_lengths)} documents were tokenized instead of {expected_documents}"
        )
    _write_index(prefix.with_suffix(".idx"), type_code, all_lengths)
    return TokenizedSplit(len(all_lengths), int(all_lengths.sum(dtype=np.int64)))


def _read_index(path: Path) -> tuple[int, npt.NDArray[np.int32]]:
    """Type code and lengths of the documents."""
    with open(path, "rb") as file:
        header = file.read(_INDEX_HEADER.size)
        _, _, type_code, num_documents, _ = _INDEX_HEADER.unpack(header)
        return type_code, np.fromfile(file, dtype=np.int32, count=num_documents)


def _write_index(path: Path, type_code: int, lengths: npt.NDArray[np.int32]) -> None:
    num_documents = len(lengths)
    ends = np.cumsum(lengths, dtype=np.int64) * _TOKEN_BYTES[type_code]
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])
    with open(path, "wb") as file:
        file.write(_INDEX_HEADER.pack(_INDEX_MAGIC, 1, type_code, num_documents, num_documents + 1))
        lengths.tofile(file)
        starts.tofile(file)
        np.arange(num_documents + 1, dtype=np.int64).tofile(file)
