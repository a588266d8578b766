"""Says which key and which document of a task lm-eval has raised on: its own words are Python's."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType

_KEYS = ("doc_to_text", "doc_to_target", "doc_to_choice", "process_docs")


def where_raised(error: BaseException) -> str:
    """Document and key, as far as they are known."""
    key = next((f.f_code.co_name for f in _frames(error) if f.f_code.co_name in _KEYS), "")
    return ", ".join(part for part in (_document(error), key) if part)


def no_such_answer(error: BaseException) -> str | None:
    """The sentence about an answer's place that is beyond the choices, if that was what it raised on."""
    if not isinstance(error, IndexError):
        return None
    for frame in _frames(error):
        values = frame.f_locals
        name = frame.f_code.co_name
        said = ""
        if name == "__init__":
            said = _answer(values.get("test_target"), values.get("test_choice"))
        elif name == "build_qa_turn":
            said = _answer(values.get("a"), values.get("c"))
        if said:
            return f"{_document(error) or 'a document'}: {said}"
    return None


def _document(error: BaseException) -> str:
    document = ""
    for frame in _frames(error):
        name, values = frame.f_code.co_name, frame.f_locals
        if name == "build_all_requests" and isinstance(values.get("doc_id"), int):
            document = f"document {values['doc_id'] + 1}"
        elif name == "__init__" and "test_doc" in values:
            document = "document 1"
        elif name == "build_qa_turn" and values.get("a") is not None:
            document = f"an example before {document}" if document else "an example"
    return document


def _answer(target: object, choices: object) -> str:
    """What is wrong with an answer's place among the choices, if it is none."""
    if not isinstance(target, int) or not isinstance(choices, list | tuple):
        return ""
    if -len(choices) <= target < len(choices):
        return ""
    return (
        f"doc_to_target gives {target}, and doc_to_choice {len(choices)} choices, "
        f"from 0 to {len(choices) - 1}"
    )


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next
