"""One tokenizing process: a datatrove pipeline over a contiguous range of the corpus' shards.

Run as `python -m tasks.data.tokenize_worker`, with a WorkerJob as JSON in one line on stdin. Each
shard becomes OUTPUT/RANK_tokens.bin and .idx. The process leads its own group, and ends it when stdin
closes, for then the parent is gone.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from functools import cached_property
from typing import Any

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.readers.jsonl import JsonlReader
from datatrove.pipeline.tokens.megatron_tokenizer import MegatronDocumentTokenizer

from tasks.data.megatron import WorkerJob

_PARENT_GONE_EXIT_CODE = 3
# Documents whose encodings are in memory at once.
_BATCH_DOCUMENTS = 16


class PlainTextTokenizer(MegatronDocumentTokenizer):  # type: ignore[misc]
    """Encodes special tokens that the text spells out as text, so that none ends a document early."""

    @cached_property
    def tokenizer(self) -> Any:
        tokenizer = super().tokenizer
        tokenizer.encode_special_tokens = True
        return tokenizer


def run(job: WorkerJob) -> None:
    """Tokenize the job's shards."""
    reader = JsonlReader(job.shards_dir, compression="zstd", glob_pattern="*.jsonl.zst")
    writer = PlainTextTokenizer(
        job.output_dir,
        tokenizer_name_or_path=job.tokenizer_file,
        eos_token=job.end_of_text,
        batch_size=_BATCH_DOCUMENTS,
    )
    LocalPipelineExecutor(
        [reader, writer],
        tasks=job.num_shards,
        local_tasks=job.count,
        local_rank_offset=job.first_shard,
        workers=1,
        logging_dir=job.logging_dir,
        skip_completed=False,
    ).run()


def _leave_with_parent() -> None:
    """End this whole process group (datatrove forks a manager process) when stdin closes."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Read the job from stdin and run it."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit(_PARENT_GONE_EXIT_CODE)
        line += byte
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    run(WorkerJob(**json.loads(line)))


if __name__ == "__main__":
    main()
