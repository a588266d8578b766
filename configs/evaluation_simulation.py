"""What `overland simulate evaluation` assumes and finds: the types behind its output.

Times are seconds, sizes bytes.
"""

from __future__ import annotations

from configs.records import Record


class EvaluationSetting(Record):
    """The machines and the model."""

    nodes: int
    gpus_per_node: int = 8
    cpu_cores_per_node: int = 64
    model_bytes: float = 14e9
    """7B parameters in bf16."""
    storage_bytes_per_s: float = 25e9 / 8
    """Of each node, shared by the loads that it makes at the same time."""
    host_to_gpu_bytes_per_s: float = 12e9
    """Of each GPU, from the node's memory."""
    process_start_s: float = 0.0
    """Of each process that holds a model, before it loads it."""
    scorer_start_s: float = 0.0
    """Of what scores, where it starts only when inference has ended."""
    shard_overhead_s: float = 0.0
    """Of each slice of a task, in every policy."""

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def cpu_cores(self) -> int:
        return self.nodes * self.cpu_cores_per_node

    @property
    def stage_s(self) -> float:
        """From storage to a node's memory, once."""
        return self.model_bytes / self.storage_bytes_per_s

    @property
    def load_s(self) -> float:
        """From a node's memory to a GPU."""
        return self.model_bytes / self.host_to_gpu_bytes_per_s


class PolicyResult(Record):
    """How one way to run the evaluation went."""

    makespan_s: float
    infer_end_s: float
    loads: int
    """Times that a model was loaded from storage: for ours, staged."""
    gpu_busy_share: float
    """Of all GPUs until inference ended: computing, not loading, waiting or scoring."""
    choice: str
    """What was chosen for it, where the policy leaves a choice: the best of those tried."""


class BoundParts(Record):
    """The parts of the lower bound; the largest is the bound."""

    load_s: float
    gpu_s: float
    chain_s: float
    cpu_s: float


class EvaluationSimulation(Record):
    """One evaluation under each policy."""

    nodes: int
    tasks: int
    requests: int
    infer_s: float
    """All inference on one GPU."""
    metric_s: float
    """All metrics on one core."""
    longest_metric_s: float
    ours_s: float
    per_task_s: float
    opencompass_size_s: float
    opencompass_num_worker_s: float
    lower_bound_s: float
    over_bound: float
    """ours_s / lower_bound_s - 1."""
    speedup: dict[str, float]
    """Of ours against each policy."""
    speedup_at_bound: dict[str, float]
    """What a plan that meets the bound would reach: no plan can do better."""
    shards: int
    bound: BoundParts
    policies: dict[str, PolicyResult]
    """Also OpenCompass's with its defaults."""
    setting: EvaluationSetting
    workload: str
    """Where the tasks come from."""
