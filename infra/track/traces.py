"""Trees of spans as MLflow's traces, with ids that follow from their keys: told twice, they are one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator

from mlflow.entities import Span as MlflowSpan
from mlflow.entities import TraceInfo, TraceLocation, TraceState
from mlflow.tracing.constant import SpanAttributeKey, TraceMetadataKey, TraceTagKey
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, Status, StatusCode

from infra.track.points import clean, milliseconds
from infra.track.spans import Span


def trace_info(
    root: Span,
    key: str,
    experiment_id: str,
    tags: dict[str, str],
    run_id: str,
    model_id: str | None,
) -> TraceInfo:
    """The trace of `root`, shown with the run, and with the model if there is one."""
    metadata = {TraceMetadataKey.SOURCE_RUN: run_id}
    if model_id is not None:
        metadata[TraceMetadataKey.MODEL_ID] = model_id
    return TraceInfo(
        trace_id=_trace_id(_number(key, 16)),
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=milliseconds(root.start),
        execution_duration=milliseconds(root.end) - milliseconds(root.start),
        state=TraceState.ERROR if root.error else TraceState.OK,
        trace_metadata=metadata,
        tags={TraceTagKey.TRACE_NAME: root.name, **tags},
    )


def trace_spans(root: Span, key: str) -> list[MlflowSpan]:
    """The tree's spans, root first."""
    return list(_mlflow_spans(root, key, _number(key, 16), parent=None))


def _number(key: str, size_bytes: int) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:size_bytes], "big")


def _trace_id(trace_number: int) -> str:
    return f"tr-{trace_number:032x}"


def _mlflow_spans(
    span: Span, path: str, trace_number: int, parent: SpanContext | None
) -> Iterator[MlflowSpan]:
    """The tree, root first. Ids follow from the paths of names and times."""
    context = SpanContext(trace_number, _number(path, 8), is_remote=False)
    attributes: dict[str, object] = {
        SpanAttributeKey.REQUEST_ID: _trace_id(trace_number),
        SpanAttributeKey.SPAN_TYPE: "TASK",
        **{name: _clean_attribute(value) for name, value in span.attributes.items()},
    }
    status = Status(StatusCode.ERROR, clean(span.error)) if span.error else Status(StatusCode.OK)
    yield MlflowSpan(
        ReadableSpan(
            name=span.name,
            context=context,
            parent=parent,
            resource=Resource.get_empty(),
            attributes={name: json.dumps(value) for name, value in attributes.items()},
            status=status,
            start_time=round(span.start * 1e9),
            end_time=round(span.end * 1e9),
        )
    )
    for child in span.children:
        below = f"{path}/{child.name}@{child.start}"
        yield from _mlflow_spans(child, below, trace_number, context)


def _clean_attribute(value: object) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Iterable):
        return [clean(item) for item in value]
    return value
