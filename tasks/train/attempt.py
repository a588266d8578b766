"""One attempt on one rank: from its config to the last step."""

from __future__ import annotations

from pydantic import ValidationError

from configs.errors import CheckpointError, ConfigError, CorpusError
from configs.events import CheckpointEvent
from configs.lineage import lineage_of
from configs.records import CommitMarker, DataManifest
from configs.rundir import AttemptDir, RunDir
from configs.schema import RunConfig
from configs.shapes import count_parameters, padded_vocab_size
from tasks.train import distributed
from tasks.train.buffers import Layout
from tasks.train.checkpoint_load import resume
from tasks.train.checkpoint_save import Checkpointer
from tasks.train.chunks import chunks_of, held_by
from tasks.train.data import open_datasets
from tasks.train.distributed import World
from tasks.train.events import EventLog
from tasks.train.faults import Faults
from tasks.train.loop import Trainer
from tasks.train.memory_load import new_token, open_buffers
from tasks.train.model import build_model, model_fingerprint
from tasks.train.optimizer import build_optimizer, build_schedule, wrap_data_parallel
from tasks.train.state import TrainingState, parallel_sizes
from tasks.train.stop import StopRequests


def train_attempt(run: RunDir, attempt: AttemptDir) -> int:
    """Build everything, resume from the newest whole state, and train on; returns the exit code."""
    config, manifest = read_inputs(run, attempt)
    world = distributed.start(config)
    events = EventLog(attempt.events_path)
    faults = Faults(config.faults, attempt=attempt.number, rank=world.rank, events=events)
    datasets = open_datasets(run, manifest, config, world, on_poison=faults.on_poison)
    marker = empty_marker(config, manifest, attempt.number, world.precision)
    state = build_state(config, manifest.vocab_size, world)
    chunks = chunks_of(state)
    buffers = open_buffers(config.checkpoint, run, world, chunks)
    lineage = world.from_main(lambda: lineage_of(run))
    resumption = resume(run, state, marker, world, buffers, chunks, lineage)
    if resumption.source == "storage":
        chunks = chunks_of(state)  # Loading has made new optimizer tensors.
        buffers.rebind(Layout.of(held_by(chunks, world.data_rank)))
    checkpointer = Checkpointer(
        config,
        run,
        world,
        state,
        buffers,
        marker,
        token=new_token(attempt, world),
        full_disk=faults.fills_disk,
        stored_step=resumption.step if resumption.is_in_storage else 0,
    )
    stop = StopRequests(run, rank=world.rank)
    trainer = Trainer(
        config,
        run,
        world,
        state,
        datasets,
        marker,
        events,
        faults,
        checkpointer,
        skip_samples=lineage.skip_samples,
        stop_requested=lambda: stop.requested,
    )
    exit_code = trainer.run(resumption, count_parameters(config.model, marker.padded_vocab_size))
    if world.is_main:
        require_checkpoint(run, attempt, state.step)
    checkpointer.close(remove=True)
    distributed.stop()
    return exit_code


def require_checkpoint(run: RunDir, attempt: AttemptDir, step: int) -> None:
    """A job whose last checkpoint could not be saved is not done: its result would be lost."""
    if run.checkpoint(step).is_committed():
        return
    saves = [e for e in attempt.events() if isinstance(e, CheckpointEvent) and e.step == step]
    reason = f" ({saves[-1].error})" if saves else ""
    raise CheckpointError(
        f"the checkpoint of the last step, {step}, could not be saved{reason}: start the run again "
        "when it can be"
    )


def read_inputs(run: RunDir, attempt: AttemptDir) -> tuple[RunConfig, DataManifest]:
    """The attempt's config and the data's manifest."""
    try:
        config = RunConfig.model_validate_json(attempt.config_path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"{attempt.config_path} is not the config of an attempt: {error}"
        ) from error
    manifest = run.manifest()
    if manifest is None:
        raise CorpusError(f"{run.manifest_path} is missing or broken: prepare the data first")
    return config, manifest


def build_state(config: RunConfig, vocab_size: int, world: World) -> TrainingState:
    """Model with random weights, optimizer and schedule, before the first step."""
    ddp = wrap_data_parallel(build_model(config, vocab_size, world.dtype), config)
    optimizer = build_optimizer(ddp, config, world.dtype)
    return TrainingState(ddp, optimizer, build_schedule(optimizer, config.train))


def empty_marker(
    config: RunConfig, manifest: DataManifest, attempt: int, precision: str
) -> CommitMarker:
    """The commit marker of this attempt's checkpoints, without what only a save can tell."""
    padded_vocab = padded_vocab_size(manifest.vocab_size)
    return CommitMarker(
        step=0,
        consumed_samples=0,
        model_fingerprint=model_fingerprint(config.model, padded_vocab, manifest.tokenizer_sha256),
        model=config.model.model_dump(mode="json"),
        tokenizer_sha256=manifest.tokenizer_sha256,
        padded_vocab_size=padded_vocab,
        files={},
        attempt=attempt,
        parallel=parallel_sizes(config.parallel),
        precision=precision,
        committed_at=0.0,
        duration_s=0.0,
    )
