"""Megatron's optimizer, learning-rate schedule and gradient reduction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch

from configs.schema import RunConfig, TrainConfig
from tasks.train.mcore import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    GPTModel,
    OptimizerConfig,
    OptimizerParamScheduler,
    finalize_model_grads,
    get_megatron_optimizer,
    without_megatron_warnings,
)
from tasks.train.state import optimizer_parts


def wrap_data_parallel(model: GPTModel, config: RunConfig) -> DistributedDataParallel:
    """The model with gradient buffers that are reduced over data-parallel ranks, in fp32."""
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=config.parallel.data > 1,
        use_distributed_optimizer=config.parallel.distributed_optimizer,
    )
    return DistributedDataParallel(config=model.config, ddp_config=ddp_config, module=model)


@without_megatron_warnings()
def build_optimizer(ddp: DistributedDataParallel, config: RunConfig, dtype: torch.dtype) -> Any:
    """AdamW with gradient clipping; norms are not decayed. Ties the backward pass to it."""
    train = config.train
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=train.learning_rate,
            min_lr=train.min_learning_rate,
            weight_decay=train.weight_decay,
            adam_beta1=train.adam_beta1,
            adam_beta2=train.adam_beta2,
            clip_grad=train.clip_grad,
            bf16=dtype is torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=config.parallel.distributed_optimizer,
        ),
        [ddp],
    )
    _make_state(optimizer)
    if config.parallel.distributed_optimizer:
        _adapt_to_torch_adam(optimizer)
    ddp.config.finalize_model_grads_func = finalize_model_grads
    ddp.config.grad_scale_func = optimizer.scale_loss
    if config.parallel.data > 1:
        ddp.config.no_sync_func = ddp.no_sync
    return optimizer


def before_reduction(ddp: DistributedDataParallel, call: Callable[[], None]) -> None:
    """Have `call` made in each step once this rank's own gradients are there, before it waits for those
    of the others."""
    reduce: Callable[..., Any] = ddp.config.finalize_model_grads_func

    @wraps(reduce)
    def both(*arguments: Any, **named: Any) -> Any:
        call()
        return reduce(*arguments, **named)

    ddp.config.finalize_model_grads_func = both


def build_schedule(optimizer: object, train: TrainConfig) -> OptimizerParamScheduler:
    """Linear warm-up, then a cosine to the least learning rate at the last step.

    Advanced before the optimizer: step n of the run uses the rate after n advances, so the first
    step already learns and the last one uses the least rate.
    """
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=train.learning_rate,
        min_lr=min(train.min_learning_rate, train.learning_rate),
        lr_warmup_steps=train.warmup_steps,
        lr_decay_steps=max(train.steps, train.warmup_steps + 1),
        lr_decay_style="cosine",
        start_wd=train.weight_decay,
        end_wd=train.weight_decay,
        wd_incr_steps=train.steps,
        wd_incr_style="constant",
        # A longer run continues on its own, longer schedule.
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,
    )


def _make_state(optimizer: Any) -> None:
    """Make the zeros that the first step would begin with: snapshots can be planned before it."""
    for part in optimizer_parts(optimizer):
        adam = part.optimizer
        if not isinstance(adam, torch.optim.AdamW):
            part.init_state_fn(adam, part.config)
            continue
        for parameter in (p for group in adam.param_groups for p in group["params"]):
            adam.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def _adapt_to_torch_adam(optimizer: Any) -> None:
    """Let Megatron's distributed optimizer load torch's AdamW.

    It does not load the step count with the other tensors. Transformer Engine's and Apex's Adam need
    no such help.
    """
    for part in optimizer_parts(optimizer):
        if isinstance(part.optimizer, torch.optim.AdamW):
            part._set_main_param_and_optimizer_states = partial(
                _set_states_with_step, part, part._set_main_param_and_optimizer_states
            )


def _set_states_with_step(
    part: Any, set_states: Any, parameter: Any, tensors: dict[str, torch.Tensor]
) -> None:
    group, order = part.model_param_group_index_map[parameter]
    state = part.optimizer.state[part.optimizer.param_groups[group]["params"][order]]
    # Loading gives all parameters one tensor, which each of them would advance in every step.
    state["step"] = state["step"].clone()
    set_states(parameter, {"step": state["step"], **tensors})
