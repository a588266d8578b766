"""The seam to what runs the model: each backend gives lm-eval's interface for one model folder.

A backend is a function from a folder and the plan's settings to an lm-eval `LM`. Torch and its
friends take seconds to import: only a process that asks the model pays for them.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.errors import EvaluationError
from tasks.evaluate.enumeration import SEEDS, request_key, request_sha256
from tasks.evaluate.harness import Instance
from tasks.evaluate.plan import Answering

_MODULES = {"hf": "lm_eval.models.huggingface", "vllm": "lm_eval.models.vllm_causallms"}


def import_backend(name: str, model_dir: Path) -> None:
    """Import what the backend needs for this model; the slowest part of a worker's start."""
    with _collector_paused():
        importlib.import_module("torch")
        importlib.import_module(_MODULES[name])
        if name == "hf":
            _import_model_class(model_dir)


def _import_model_class(model_dir: Path) -> None:
    """Have transformers import the model's and the tokenizer's code, which it else does at the load."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(model_dir)
    mapping = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) in mapping:
        mapping[type(config)]
    transformers.AutoTokenizer.from_pretrained(model_dir)


def load_model(model_dir: Path, answering: Answering) -> Any:
    """The model behind lm-eval's interface."""
    with _collector_paused():
        return _BACKENDS[answering.backend](model_dir, answering)


def ask(model: Any, requests: Sequence[Instance]) -> list[dict[str, Any]]:
    """The model's responses as rows of a shard's file; each request as often as its task repeats it.

    The requests are of one type.
    """
    import torch

    torch.manual_seed(SEEDS["torch"])
    asked = [(request, repeat) for request in requests for repeat in range(request.repeats)]
    answer = getattr(model, requests[0].request_type)
    responses = answer([request for request, _ in asked])
    return [
        {
            "key": request_key(request, repeat),
            "prompt_sha256": request_sha256(request),
            "response": response,
        }
        for (request, repeat), response in zip(asked, responses, strict=True)
    ]


def _hugging_face(model_dir: Path, answering: Answering) -> Any:
    import torch
    from lm_eval.models.huggingface import HFLM

    if answering.device == "cuda" and not torch.cuda.is_available():
        raise EvaluationError(
            "this worker was given a GPU and finds none: torch sees no CUDA device"
        )
    return HFLM(
        pretrained=str(model_dir),
        device=answering.device,
        dtype=answering.dtype,
        batch_size=answering.batch_size,
    )


def _vllm(model_dir: Path, answering: Answering) -> Any:
    from lm_eval.models.vllm_causallms import VLLM

    return VLLM(
        pretrained=str(model_dir),
        dtype=answering.dtype,
        batch_size=answering.batch_size,
        seed=SEEDS["torch"],
    )


_BACKENDS: dict[str, Callable[[Path, Answering], Any]] = {
    "hf": _hugging_face,
    "vllm": _vllm,
}


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Imports make objects that stay; walking them over and over costs a fifth of the start-up."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
