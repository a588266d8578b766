"""Going on with fewer nodes than the config names: fewer data-parallel replicas, the same global batch. Pure."""

from __future__ import annotations

from configs.schema import RunConfig


def on_fewer_nodes(config: RunConfig, nodes: int) -> RunConfig | None:
    """The config for as many of `nodes` nodes as fit, fewer than it names; None when none do.

    Tensor and pipeline parallel sizes stay, as they decide whether the model fits a GPU. Each replica
    makes more micro-batches in a step, so the step computes the same on the same data.
    """
    launcher, parallel, train = config.launcher, config.parallel, config.train
    model_size = parallel.tensor * parallel.pipeline
    for count in range(min(nodes, launcher.nodes - 1), 0, -1):
        data, rest = divmod(count * launcher.processes_per_node, model_size)
        if rest or not data or train.global_batch_size % (train.micro_batch_size * data):
            continue
        return config.model_copy(
            update={
                "launcher": launcher.model_copy(update={"nodes": count}),
                "parallel": parallel.model_copy(update={"data": data}),
            }
        )
    return None
