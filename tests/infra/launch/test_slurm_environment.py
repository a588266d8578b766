"""What jobs get of the flow's environment, and what they do not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from configs.checks import check_launchable
from configs.errors import ConfigError
from configs.schema import RunConfig
from infra.launch.base import JobSpec
from infra.launch.slurm_environment import job_environment

SPEC = JobSpec(key="k", name="n", argv=("true",), job_dir=Path("/job"), environment={"OWN": "1"})
SECRETS = (
    "PREFECT_API_AUTH_STRING",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "OPENAI_API_KEY",
    "MY_MODELS_KEY",
    "SLURM_JWT",
)


def test_secrets_of_the_flow_stay_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "a-secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the storage, which ranks write to")
    defaults = RunConfig(name="n").launcher.slurm.withhold
    given = job_environment(SPEC, [*defaults, "MY_MODELS_KEY"])
    assert "a-secret" not in given.values()
    assert given["AWS_SECRET_ACCESS_KEY"]
    assert given["OWN"] == "1"
    asked_for = dataclasses.replace(SPEC, environment={"OPENAI_API_KEY": "wanted"})
    assert job_environment(asked_for, defaults)["OPENAI_API_KEY"] == "wanted"


def test_the_models_key_is_withheld_or_the_config_refused() -> None:
    def check(name: str, **slurm: object) -> None:
        site = {"url": "http://login:6820", "token_file": "/token"} | slurm
        launcher = {"kind": "slurm", "slurm": site}
        values = {"launcher": launcher, "diagnose": {"api_key_env": name}}
        check_launchable(RunConfig.model_validate(values))

    check("OPENAI_API_KEY")
    check("MY_MODELS_KEY", withhold=["MY_*"])
    with pytest.raises(ConfigError, match=r"MY_MODELS_KEY.*add it to launcher\.slurm\.withhold"):
        check("MY_MODELS_KEY")
