"""Saves a random model from every rank of a torchrun job, with the logits that it gives.

    torchrun ... random_checkpoint.py RUN_DIR CONFIG_JSON

Commits checkpoints/step_00000005/ with the stage's own code; writes RUN_DIR/logits.pt (the last
rank's tokens and logits). Every weight is random, norms too, so that none can be taken for another.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from configs.rundir import RunDir
from configs.schema import RunConfig
from tasks.train import distributed
from tasks.train.attempt import build_state, empty_marker
from tasks.train.checkpoint_save import new_checkpointer
from tasks.train.mcore import GPTModel, parallel_state, tensor_parallel

STEP = 5


def main(run_dir: str, config_json: str) -> None:
    run, config = (
        RunDir(Path(run_dir)),
        RunConfig.model_validate_json(Path(config_json).read_bytes()),
    )
    world = distributed.start(config)
    manifest = run.manifest()
    assert manifest is not None
    state = build_state(config, manifest.vocab_size, world)
    model = state.ddp.module.eval()
    randomise(model, world.rank)
    tokens = torch.arange(config.model.sequence_length).repeat(2, 1) * 7 % manifest.vocab_size
    logits = compute_logits(model, tokens + torch.tensor([[0], [1]]), config.model.hidden_size)
    if logits is not None:
        torch.save(
            {"tokens": tokens + torch.tensor([[0], [1]]), "logits": logits}, run.path / "logits.pt"
        )
    marker = empty_marker(config, manifest, attempt=1, precision=world.precision)
    state.step = STEP
    checkpointer = new_checkpointer(config, run, run.attempt(1), world, state, marker)
    errors = [event.error for event in checkpointer.finish() if event.error]
    assert not errors, errors
    checkpointer.close(remove=True)
    distributed.stop()


def randomise(model: GPTModel, rank: int) -> None:
    """Tensor-parallel ranks hold copies of the norms, and parts of everything else."""
    shared = torch.Generator().manual_seed(parallel_state.get_pipeline_model_parallel_rank())
    own = torch.Generator().manual_seed(100 + rank)
    with torch.no_grad():
        for parameter in model.parameters():
            generator = shared if parameter.dim() == 1 else own
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


@torch.no_grad()
def compute_logits(model: GPTModel, tokens: torch.Tensor, hidden_size: int) -> torch.Tensor | None:
    """[batch, sequence, padded vocabulary], on the last rank of the last pipeline stage."""
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    if not parallel_state.is_pipeline_first_stage():
        hidden = torch.empty(tokens.shape[1], tokens.shape[0], hidden_size)
        dist.recv(hidden, src=0)
        model.set_input_tensor(hidden)
    output = model(tokens, positions, None)
    if not parallel_state.is_pipeline_last_stage():
        dist.send(output.contiguous(), dst=1)
        return None
    logits = tensor_parallel.gather_from_tensor_model_parallel_region(output)
    return logits if dist.get_rank() == dist.get_world_size() - 1 else None


if __name__ == "__main__":
    main(*sys.argv[1:])
