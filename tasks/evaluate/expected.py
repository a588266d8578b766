"""What a task is expected to take: its counts and the measured times, as work for the planner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tasks.evaluate.priors import FIRST_GUESS_S, Measurement, Phase, Priors
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
    phase, units = _answering(counts)
    infer = priors.estimate(
        phase, task=counts.task, backend=backend, parameters=parameters, units=units
    )
    metric = priors.estimate(
        "metric", task=counts.task, backend=METRIC_BACKEND, parameters=1.0, units=counts.documents
    )
    return WorkItem(
        task=counts.task,
        requests=counts.documents,
        infer_s=infer.seconds,
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
    infer_s: float | None,
    metric_s: float | None,
) -> Iterator[Measurement]:
    """What a trial says about its task. None: that was not measured in it."""
    if infer_s is not None:
        phase, units = _answering(counts)
        yield Measurement(counts.task, phase, backend, parameters, units, infer_s)
    if metric_s is not None:
        yield Measurement(counts.task, "metric", METRIC_BACKEND, 1.0, counts.documents, metric_s)


def _answering(counts: TaskCounts) -> tuple[Phase, float]:
    """The phase that answering is kept as, and its units.

    No backend tells reading prompts from writing answers, so both are one phase, and what is expected
    of it is what was measured of it. Tokens that are read count as so many written ones as they cost.
    """
    if not counts.generated_tokens:
        return "prefill", counts.prompt_tokens
    read_as_written = FIRST_GUESS_S["prefill"] / FIRST_GUESS_S["decode"]
    return "decode", counts.generated_tokens + counts.prompt_tokens * read_as_written
