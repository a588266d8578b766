"""Megatron's optimizer, learning-rate schedule and gradient reduction."""

from __future__ import annotations

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


def wrap_data_parallel(model: GPTModel, config: RunConfig) -> DistributedDataParallel:
    """The model with gradient buffers that are reduced over data-parallel ranks, in fp32."""
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=config.parallel.data > 1,
        use_distributed_optimizer=config.parallel.distributed_optimizer,
    )
    return DistributedDataParallel(config=model.config, ddp_config=ddp_config, module=model)


@without_megatron_warnings()
def build_optimizer(ddp: DistributedDataParallel, config: RunConfig, dtype: torch.dtype):  # type: ignore[no-untyped-def]
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
    ddp.config.finalize_model_grads_func = finalize_model_grads
    ddp.config.grad_scale_func = optimizer.scale_loss
    if config.parallel.data > 1:
        ddp.config.no_sync_func = ddp.no_sync
    return optimizer


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
