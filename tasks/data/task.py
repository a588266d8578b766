"""Prefect task of the prepare stage, and what it has left for training."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from configs.errors import RunDirectoryError
from configs.records import DataManifest
from configs.rundir import RunDir
from configs.schema import RunConfig
from tasks.data.fingerprint import data_settings
from tasks.data.prepare import prepare


@task(name="prepare-data", cache_policy=NO_CACHE)
def prepare_data(config: RunConfig) -> DataManifest:
    """Make the run's data set, or find that it is there already.

    Once training has begun its data set stays as it is, whatever became of the corpus.
    """
    run = RunDir(config.resolved_run_dir())
    if not run.attempts():
        return prepare(config, run.data_dir, report=get_run_logger().info)
    manifest = run.manifest()
    if manifest is None:
        raise RunDirectoryError(
            f"{run.path} has training attempts but no data set ({run.manifest_path} is missing): "
            "restore its data folder or choose another run_dir"
        )
    return manifest


def prepared_data(config: RunConfig) -> DataManifest:
    """The data set to train on; RunDirectoryError when there is none, or one for another config."""
    run = RunDir(config.resolved_run_dir())
    manifest = run.manifest()
    if manifest is None:
        raise RunDirectoryError(f"{run.path} has no data set: run `overland prepare` first")
    for key, new in data_settings(config).items():
        old = manifest.config.get(key, new)
        if old != new:
            other = (
                "choose another run_dir=DIR" if run.attempts() else "run `overland prepare` again"
            )
            raise RunDirectoryError(
                f"{run.path} holds a data set that was prepared with {key}={old}, this config says "
                f"{new}: set it back, or {other}"
            )
    return manifest
