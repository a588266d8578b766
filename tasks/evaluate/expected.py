"""What a task is expected to take: its counts and the measured times, as work for the planner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tasks.evaluate.priors import Measurement, Priors
from tasks.evaluate.schedule_types import WorkItem


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """What is known of a task before it runs."""

    task: str
    documents: int
    prompt_tokens: float
    """Of all requests together; characters / 4 where nothing is tokenized yet."""
    generated_tokens: float = 0.0
    """At most, of all requests; 0 for log-likelihoods."""


def expected_item(
    priors: Priors, counts: TaskCounts, *, backend: str, parameters: float, metric_parts: int = 1
) -> WorkItem:
    """The task as work for the planner, with expected times."""
    prefill = priors.estimate(
        "prefill",
        task=counts.task,
        backend=backend,
        parameters=parameters,
        units=counts.prompt_tokens,
    )
    decode = priors.estimate(
        "decode",
        task=counts.task,
        backend=backend,
        parameters=parameters,
        units=counts.generated_tokens,
    )
    metric = priors.estimate(
        "metric", task=counts.task, backend=METRIC_BACKEND, parameters=1.0, units=counts.documents
    )
    return WorkItem(
        task=counts.task,
        requests=counts.documents,
        infer_s=prefill.seconds + decode.seconds,
        metric_s=metric.seconds,
        metric_parts=metric_parts,
    )


METRIC_BACKEND = "cpu"
"""Metrics know neither the model nor what ran it."""


def measured(
    counts: TaskCounts,
    *,
    backend: str,
    parameters: float,
    infer_s: float,
    metric_s: float,
    prefill_s: float | None = None,
) -> Iterator[Measurement]:
    """What a trial says about its task. A backend that cannot tell prefill from decode gives the sum: it
    counts as prefill where nothing was generated, else as decode."""
    generated = counts.generated_tokens > 0
    if prefill_s is None:
        prefill_s = 0.0 if generated else infer_s
    yield Measurement(counts.task, "prefill", backend, parameters, counts.prompt_tokens, prefill_s)
    if generated:
        decode_s = infer_s - prefill_s
        yield Measurement(
            counts.task, "decode", backend, parameters, counts.generated_tokens, decode_s
        )
    yield Measurement(counts.task, "metric", METRIC_BACKEND, 1.0, counts.documents, metric_s)
