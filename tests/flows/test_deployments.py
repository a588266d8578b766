"""prefect.yaml names flows that exist, and their forms explain themselves."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from configs.schema import RunConfig

PREFECT_FILE = Path(__file__).parent.parent.parent / "prefect.yaml"
DEPLOYMENTS = yaml.safe_load(PREFECT_FILE.read_text())["deployments"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_entrypoint_is_a_flow_with_typed_parameters(deployment: dict[str, Any]) -> None:
    flow = load_flow_from_entrypoint(str(PREFECT_FILE.parent / deployment["entrypoint"]))
    assert flow.name == deployment["name"]
    schema = parameter_schema(flow)
    assert schema.properties.keys() >= deployment.get("parameters", {}).keys()
    for trigger in deployment.get("triggers", []):
        assert schema.properties.keys() >= trigger["parameters"].keys()


def test_every_flow_is_deployed() -> None:
    modules = [
        importlib.import_module(f"flows.{path.stem}")
        for path in (PREFECT_FILE.parent / "flows").glob("*.py")
    ]
    found = [value for module in modules for value in vars(module).values()]
    flows = {value.name for value in found if isinstance(value, Flow)}
    assert len(flows) >= 5
    assert {deployment["name"] for deployment in DEPLOYMENTS} == flows


def test_the_form_describes_every_field() -> None:
    """Fields whose name says all (num_layers, seed) may go without."""
    flow = load_flow_from_entrypoint(str(PREFECT_FILE.parent / "flows/pipeline.py:pipeline"))
    definitions = parameter_schema(flow).definitions
    assert "RunConfig" in definitions
    described = definitions["EvaluateConfig"]["properties"]["limit"]["description"]
    assert described == "Documents per task; None: all."


def test_a_config_survives_the_form() -> None:
    """What Prefect stores of a parameter is JSON; it comes back as the same config."""
    config = RunConfig(name="form")
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
