"""What `overland bench checkpoint` prints, for people and for programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flows.show.bench import print_checkpoint_bench

FIGURES: dict[str, Any] = {
    "results": [
        {
            "name": name,
            "blocked_s": blocked_s,
            "first_blocked_s": 2.5,
            "slowdown_s": 0.25,
            "ratio_vs_sync": 2.0 / blocked_s,
        }
        for name, blocked_s in (("synchronous", 2.0), ("overland", 0.004))
    ],
    "synchronous_by": "torch dcp.save, 2 files",
    "restart_from_memory_s": 0.125,
    "restart_from_storage_s": 2.0,
    "model_parameters": 103_828_224,
    "state_bytes": 1_245_938_688,
    "step_s": 0.9,
    "saves": 5,
    "device": "cpu (x86_64)",
}


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_checkpoint_bench(FIGURES, json=False)
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if "overland" in line)
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == [
        *("overland", "0.0040 s", "2.5000 s", "0.2500 s", "0.2540 s", "500.0 x"),
    ]
    text = "\n".join(lines)
    assert "103.8 M parameters, 1.16 GiB of state" in text
    assert "restart from memory 0.125 s, from storage 2.000 s" in text


def test_programs_get_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    print_checkpoint_bench(FIGURES, json=True)
    assert json.loads(capsys.readouterr().out) == FIGURES
