"""Lets megatron-core run where there is no CUDA: the one file that knows about it.

megatron-core asks for CUDA devices in three ways: `device="cuda"` or the current device's number in
factory calls, `Tensor.cuda()` and friends, and the CUDA random state in its tracker. Each is led to
the CPU. Only attributes that exist are replaced, so several versions of megatron-core are served.
Nothing is touched where CUDA is available.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._device import _device_constructors

_CPU = torch.device("cpu")
_FACTORIES = ("arange", "empty", "empty_like", "full", "ones", "ones_like", "tensor", "zeros", "zeros_like")  # fmt: skip


def needed() -> bool:
    """Whether this machine has no CUDA device."""
    return not torch.cuda.is_available()


@contextmanager
def importing_megatron() -> Iterator[None]:
    """Import megatron-core inside: its decorated functions stay plain ones.

    `torch.compile` as a decorator loads the whole compiler, seconds in every process, for fused
    kernels that the CPU configuration does not use.
    """
    if not needed():
        yield
        return
    original = torch.compile
    torch.compile = _leave_uncompiled  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = original


def install() -> None:
    """Lead megatron-core's CUDA calls to the CPU. Call once, after it was imported."""
    if not needed() or getattr(torch.Tensor.cuda, "_leads_to_cpu", False):
        return
    # torch remembers, at its first use, which functions `with torch.device(...)` leads elsewhere. It
    # must remember the real ones: they are what the replacements call.
    _device_constructors()
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    _replace_tensor_methods()
    _replace_device_functions()
    _replace_random_state()


def _leave_uncompiled(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    return function if function is not None else _leave_uncompiled


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    """`factory`, with a CUDA device argument replaced."""

    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = _CPU
            kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return create


def _replace_tensor_methods() -> None:
    original_type = torch.Tensor.type

    def cuda(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor

    def type_name(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # The optimizers accept parameters by the name of their CUDA type.
        result = original_type(tensor, *args, **kwargs)
        if isinstance(result, str):
            return result.replace("torch.", "torch.cuda.", 1)
        return result

    cuda._leads_to_cpu = True  # type: ignore[attr-defined]
    torch.Tensor.cuda = cuda  # type: ignore[assignment,method-assign]
    torch.Tensor.type = type_name  # type: ignore[assignment,method-assign]


def _replace_device_functions() -> None:
    def nothing(*_: Any, **__: Any) -> None:
        return None

    for name in ("synchronize", "empty_cache", "current_stream", "default_stream"):
        setattr(torch.cuda, name, nothing)
    torch.cuda.current_device = lambda: _CPU  # type: ignore[assignment,return-value]
    torch.cuda.manual_seed = torch.manual_seed  # type: ignore[assignment]


def _replace_random_state() -> None:
    from megatron.core.tensor_parallel import random as tracker

    def get_state(*_: Any, **__: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
        torch.set_rng_state(state)

    torch.cuda.get_rng_state = get_state
    torch.cuda.set_rng_state = set_state  # type: ignore[assignment]
    for name, function in (("_get_cuda_rng_state", get_state), ("_set_cuda_rng_state", set_state)):
        if hasattr(tracker, name):
            setattr(tracker, name, function)
