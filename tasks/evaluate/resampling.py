"""Standard errors by resampling, as lm-eval's but for the processes that do it.

lm-eval has a multiprocessing pool of as many processes as the machine has cores. It waits for ever when
one of them is killed, for want of memory for instance, and takes no notice of the cores that its job
has. Chunks, seeds and their order are the same here, so the result is the same to the last bit.
"""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from configs.errors import EvaluationError

_CHUNK = 1000
_PLAIN, _NUMPY, _RAISED = b"p", b"n", b"e"
"""What a process has written: numbers of Python's or of numpy's, or the metric's own error."""


@contextmanager
def own_resampling() -> Iterator[None]:
    """While the block runs, lm-eval resamples by this module."""
    from lm_eval.api import metrics

    theirs = metrics.bootstrap_stderr
    metrics.bootstrap_stderr = bootstrap_stderr
    try:
        yield
    finally:
        metrics.bootstrap_stderr = theirs


def bootstrap_stderr(f: Callable[[Sequence[Any]], float], xs: Sequence[Any], iters: int) -> float:
    """The standard deviation of `f` over `iters` resamples of `xs`."""
    from lm_eval.api.metrics import sample_stddev

    size = min(_CHUNK, iters)
    chunks = iters // size
    workers = min(len(os.sched_getaffinity(0)), chunks)
    parts = _in_processes(lambda at: _resample(f, xs, range(at, chunks, workers), size), workers)
    values = [
        value
        for chunk in range(chunks)
        for value in parts[chunk % workers][chunk // workers * size :][:size]
    ]
    return float(sample_stddev(values))


def _resample(
    f: Callable[[Sequence[Any]], float], xs: Sequence[Any], seeds: Sequence[int], size: int
) -> list[float]:
    values: list[float] = []
    parent = os.getppid()
    for seed in seeds:
        if os.getppid() != parent:
            os._exit(1)  # whoever wanted it was killed
        draw = random.Random(seed)  # noqa: S311
        values += [f(draw.choices(xs, k=len(xs))) for _ in range(size)]
    return values


def _in_processes(work: Callable[[int], list[float]], count: int) -> list[list[float]]:
    """What `work` gives for 0, 1, ..., each in a process of its own."""
    started = [_start(work, number) for number in range(count)]
    ended: list[tuple[int, bytes]] = []
    for pid, pipe in started:
        with open(pipe, "rb") as file:
            written = file.read()
        ended.append((os.waitpid(pid, 0)[1], written))
    for _, written in ended:
        if written[:1] == _RAISED:
            raise EvaluationError(f"a metric cannot be resampled: {written[1:].decode()}")
    if any(status for status, _ in ended):
        raise EvaluationError(
            "a process that computed standard errors was killed, maybe for want of memory: run it again"
        )
    return [_numbers(written) for _, written in ended]


def _start(work: Callable[[int], list[float]], number: int) -> tuple[int, int]:
    """The process, and the end of the pipe from which its numbers are to be read."""
    import numpy as np

    read_end, write_end = os.pipe()
    if pid := os.fork():
        os.close(write_end)
        return pid, read_end
    status = 1
    try:
        os.close(read_end)
        values = work(number)
        kind = _NUMPY if any(issubclass(type(value), np.floating) for value in values) else _PLAIN
        with open(write_end, "wb") as file:
            file.write(kind + np.array(values, dtype=np.float64).tobytes())
        status = 0
    except Exception as error:
        traceback.print_exc()
        with open(write_end, "wb") as file:
            file.write(_RAISED + repr(error).encode())
    finally:
        os._exit(status)  # nothing of the parent's is to be ended here


def _numbers(written: bytes) -> list[float]:
    """As they were: numpy's numbers may be squared otherwise than Python's."""
    import numpy as np

    values = np.frombuffer(written[1:], dtype=np.float64)
    return list(values) if written[:1] == _NUMPY else values.tolist()
