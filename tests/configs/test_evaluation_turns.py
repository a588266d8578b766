"""Whose turn it is to be evaluated, and who is left out."""

from __future__ import annotations

import pytest

from configs.evaluation_due import Turn, take_turns
from configs.schema import EvaluateConfig


@pytest.mark.parametrize(
    ("changes", "training_over", "turn"),
    [
        ({}, False, Turn([40, 30, 20, 10], [])),
        ({"order": "oldest_first"}, False, Turn([10, 20, 30, 40], [])),
        ({"most_waiting": 3}, False, Turn([40, 30, 20], [10])),
        ({"most_waiting": 1, "order": "oldest_first"}, False, Turn([40], [10, 20, 30])),
        ({"most_waiting": 2, "order": "oldest_first"}, False, Turn([30, 40], [10, 20])),
        ({"most_waiting": 1}, True, Turn([40, 30, 20, 10], [])),
        ({"most_waiting": 9}, False, Turn([40, 30, 20, 10], [])),
    ],
)
def test_turns(changes: dict[str, object], training_over: bool, turn: Turn) -> None:
    config = EvaluateConfig.model_validate(changes)
    assert take_turns(config, [20, 10, 40, 30], training_over=training_over) == turn
    assert take_turns(config, [], training_over=training_over) == Turn([], [])
