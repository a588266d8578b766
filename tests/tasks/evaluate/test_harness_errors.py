"""What lm-eval raises on is named by the task's key and document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tasks.evaluate.harness_errors import no_such_answer, where_raised


def doc_to_target(document: dict[str, Any]) -> int:
    answer: int = document["answer"]
    return answer


class Loaded:
    """Fails as lm-eval's task does, in functions of the same names."""

    def __init__(self, document: dict[str, Any]) -> None:
        test_doc = document
        test_choice = ["a", "b"]
        test_target = doc_to_target(test_doc)
        self.first = test_choice[test_target]


def build_all_requests(documents: list[dict[str, Any]], make: Callable[[Any], object]) -> None:
    for doc_id, document in enumerate(documents):
        assert doc_id >= 0
        make(document)


def build_qa_turn(document: dict[str, Any]) -> str:
    c, a = ["x", "y", "z"], doc_to_target(document)
    return c[a]


def said_of(call: Callable[[], object]) -> tuple[str, str | None]:
    try:
        call()
    except (IndexError, KeyError, TypeError) as error:
        return where_raised(error), no_such_answer(error)
    raise AssertionError("nothing was raised")


GOOD, FAR, NONE = {"answer": 0}, {"answer": 5}, {"other": 0}


def test_an_answer_that_is_no_choice_is_told_with_its_document() -> None:
    assert said_of(lambda: Loaded(FAR))[1] == (
        "document 1: doc_to_target gives 5, and doc_to_choice 2 choices, from 0 to 1"
    )
    assert said_of(lambda: build_all_requests([GOOD, FAR], build_qa_turn))[1] == (
        "an example before document 2: doc_to_target gives 5, and doc_to_choice 3 choices, "
        "from 0 to 2"
    )


def test_the_key_and_the_document_are_named() -> None:
    assert said_of(lambda: Loaded(NONE)) == ("document 1, doc_to_target", None)
    found = said_of(lambda: build_all_requests([GOOD, GOOD, NONE], doc_to_target))
    assert found == ("document 3, doc_to_target", None)


def test_what_is_raised_elsewhere_has_no_place() -> None:
    assert said_of(lambda: [][0]) == ("", None)
