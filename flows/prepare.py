"""Flow: raw text -> cleaned, deduplicated, tokenized Megatron data set."""

from __future__ import annotations

from prefect import flow

from configs.records import DataManifest
from configs.schema import RunConfig
from flows.session import open_run
from tasks.data.task import prepare_data


@flow(name="prepare", flow_run_name="{config.name}-prepare")
def prepare(config: RunConfig) -> DataManifest:
    """Prepare the run's data set, unless it is there already."""
    with open_run(config, "prepare"):
        return prepare_data(config)
