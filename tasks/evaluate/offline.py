"""Keeps evaluation off the network, and lm-eval's progress bars out of the job's log.

Hugging Face's libraries read these variables when they are imported: call :func:`go_offline` before.
`HF_HUB_OFFLINE=0` in the environment lets tasks load data sets and metrics from the hub.
"""

from __future__ import annotations

import os

_HUB_VARIABLE = "HF_HUB_OFFLINE"
_FALSE_WORDS = {"0", "false", "no", "off"}


def network_allowed() -> bool:
    """Whether the operator lets evaluation use the network."""
    return os.environ.get(_HUB_VARIABLE, "1").lower() in _FALSE_WORDS


def go_offline() -> None:
    """Set the environment of this process; what the operator has set stays."""
    offline = "0" if network_allowed() else "1"
    for variable in (_HUB_VARIABLE, "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE"):
        os.environ.setdefault(variable, offline)
    os.environ.setdefault(
        "TQDM_DELAY", "1e9"
    )  # lm-eval draws a bar a document, even when disabled.
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
