"""Checks of `launcher.slurm` that need no server."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from configs.schema import LauncherConfig, RunConfig


def check_slurm(launcher: LauncherConfig) -> Iterator[str]:
    """What is missing or does not fit together, a sentence each."""
    slurm = launcher.slurm
    if slurm.url is None:
        yield "launcher.slurm.url is missing: give slurmrestd's address, like http://login:6820"
    elif "@" in slurm.url:
        yield "launcher.slurm.url names a user or password: leave them out, a token says who asks"
    elif not _is_url(slurm.url):
        yield f"launcher.slurm.url: {slurm.url!r} is not an address like http://login:6820"
    if slurm.token_file is None and not slurm.token_command:
        yield (
            "launcher.slurm needs token_file or token_command: `scontrol token lifespan=86400` prints "
            "a token for such a file"
        )
    if slurm.token_file is not None and slurm.token_command:
        yield "launcher.slurm has token_file and token_command: one of them is enough"
    if not slurm.scontrol:
        yield "launcher.slurm.scontrol is empty: give the command, like [scontrol]"
    if slurm.warning_s is not None:
        if slurm.time_limit_minutes is None:
            yield "launcher.slurm.warning_s needs time_limit_minutes: without a limit nothing is warned of"
        elif slurm.warning_s >= slurm.time_limit_minutes * 60:
            yield (
                f"launcher.slurm.warning_s ({slurm.warning_s}) must be less than time_limit_minutes "
                f"({slurm.time_limit_minutes}, so {slurm.time_limit_minutes * 60} s)"
            )
    if slurm.gpu_type is not None and not slurm.gpus_per_node:
        yield "launcher.slurm.gpu_type needs gpus_per_node"


def check_withheld(config: RunConfig) -> Iterator[str]:
    """The language model's key is the flow's alone, whatever its variable is called."""
    name, patterns = config.diagnose.api_key_env, config.launcher.slurm.withhold
    if name is not None and not any(fnmatchcase(name, pattern) for pattern in patterns):
        yield (
            f"diagnose.api_key_env names {name}, which every job on the cluster would get: add it to "
            "launcher.slurm.withhold"
        )


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
