"""Every error that Overland raises on purpose, one class per cause.

    OverlandError
      InputError            the user gave something wrong; exit code 2, nothing was started
        ConfigError         a config file, key or value
        CorpusError         the text to train on, or its tokenizer
        RunDirectoryError   the run directory: in use, not writable, or another run's
        SiteError           the cluster: its address, token or partitions, or what is asked of it
      RunFailedError        the run was started and failed; exit code 1
      RunStoppedError       a person has asked training to stop; exit code 75
      CheckpointError       a checkpoint is incomplete, corrupt, or another model's
      AnomalyError          training goes wrong without failing, and ends itself over it
      LaunchError           a job could not be submitted, polled or cancelled
        JobRefusedError     the scheduler does not take it, as what it asks for is wrong
      EvaluationError       a checkpoint could not be exported, evaluated or scored
      TrackingError         MLflow could not be told about a run
      LanguageModelError    a language model gave no answer that can be used
      DeployError           a Prefect server cannot be set up

A message is one sentence for a person: what is wrong, where, and what would be right.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_RUN_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_CONTINUE = 75
"""Of a training job, and of the command: asked to stop, saved, can be continued (EX_TEMPFAIL)."""


class OverlandError(Exception):
    """Base of all errors that Overland raises on purpose."""

    exit_code: int = EXIT_RUN_FAILED


class InputError(OverlandError):
    """The user's input is wrong; nothing was started."""

    exit_code = EXIT_BAD_INPUT


class ConfigError(InputError):
    """A config file is missing or malformed, or a key or value in it is wrong."""


class CorpusError(InputError):
    """The corpus or its tokenizer cannot be used: empty, binary, undecodable, too small, no match."""


class RunDirectoryError(InputError):
    """The run directory is in use by a live run, belongs to another run, or cannot be written."""


class SiteError(InputError):
    """The cluster cannot be used as the config says, or does not give what the config asks for."""


class RunFailedError(OverlandError):
    """The run was started and failed."""


class RunStoppedError(OverlandError):
    """A person has asked training to stop; it has saved, and goes on when the run is started again."""

    exit_code = EXIT_CONTINUE


class CheckpointError(OverlandError):
    """A checkpoint is incomplete, corrupt, or belongs to another model."""


class AnomalyError(OverlandError):
    """Training goes wrong without failing: its loss has spiked, or its replicas differ."""


class LaunchError(OverlandError):
    """A job could not be submitted, polled or cancelled."""


class JobRefusedError(LaunchError):
    """The scheduler does not take the job: what it asks for is wrong. There is no job."""


class EvaluationError(OverlandError):
    """A checkpoint could not be exported, evaluated or scored."""


class TrackingError(OverlandError):
    """MLflow cannot be reached, or does not accept what it is told about a run."""


class LanguageModelError(OverlandError):
    """A language model cannot be reached, or what it answers cannot be used."""


class DeployError(OverlandError):
    """A Prefect server cannot be set up: unreachable, too old, not ours to change."""
