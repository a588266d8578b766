"""Assumptions for the tests of goodput planning."""

from __future__ import annotations

import random

from configs.goodput import Assumptions

DAY_S = 86_400.0


def assume(**changes: object) -> Assumptions:
    """1,000 GPUs whose nodes fail every 239 days, 1.7 TB, with some fields changed."""
    values = {
        "gpus": 1000,
        "node_mtbf_s": 239 * DAY_S,
        "state_size_bytes": 1.7e12,
        "write_bandwidth_bytes_per_s": 20e9,
        "blocked_s": 0.5,
        "detect_s": 60.0,
        "restart_s": 300.0,
        "memory_restart_s": 120.0,
    }
    return Assumptions.model_validate({**values, **changes})


def any_assumptions(seed: int, **changes: object) -> Assumptions:
    """Assumptions of all sorts, also of jobs that hardly get on."""
    rng = random.Random(seed)
    values = {
        "gpus": rng.choice([8, 500, 4000, 20_000]),
        "node_mtbf_s": rng.choice([20, 100, 239]) * DAY_S,
        "state_size_bytes": 10 ** rng.uniform(10, 13),
        "blocked_s": rng.choice([0.0, 0.05, 0.5, 10.0]),
        "detect_s": rng.choice([0.0, 30.0, 300.0]),
        "restart_s": rng.choice([0.0, 120.0, 900.0]),
        "memory_restart_s": rng.choice([10.0, 60.0]),
        "memory_fraction": rng.choice([0.0, 0.3, 0.75, 0.95]),
    }
    return assume(**{**values, **changes})
