"""The CPU adapter leaves torch's own ways intact. In a process of its own: it replaces functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import torch
from tasks.train import mcore

with torch.device("meta"):
    made = [torch.empty(2), torch.zeros(2), torch.ones(2), torch.arange(2), torch.tensor([1.0])]
    made += [torch.full((2,), 1.0), torch.nn.Linear(2, 2).weight, torch.rand(2)]
assert all(tensor.is_meta for tensor in made), made
assert torch.zeros(2, device="cuda").device.type == "cpu"
assert torch.zeros(2, device="meta").is_meta
"""


@pytest.mark.slow
def test_a_device_context_still_holds() -> None:
    """transformers loads its models under `with torch.device("meta")`."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
