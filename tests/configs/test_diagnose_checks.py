"""Checks of the diagnose section: off by default, and no secret in a config or a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_config_checks import make, refusal

from configs.checks import check_config
from configs.errors import ConfigError
from configs.load import load_config
from configs.schema import RunConfig

MODEL = {"diagnose__endpoint": "http://localhost:8000/v1", "diagnose__model": "qwen"}


def test_no_model_is_asked_by_default() -> None:
    assert RunConfig().diagnose.endpoint is None
    assert not RunConfig().diagnose.log_agent


@pytest.mark.parametrize(
    "changes",
    [
        MODEL,
        {**MODEL, "diagnose__endpoint": "https://[::1]:8000/v1"},
        {**MODEL, "diagnose__log_agent": True},
        {**MODEL, "diagnose__api_key_env": "OVERLAND_TEST_KEY"},
    ],
)
def test_settings_that_fit_are_accepted(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERLAND_TEST_KEY", "k")
    check_config(make(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({**MODEL, "diagnose__endpoint": "localhost:8000"}, "must be the base URL of a server"),
        ({**MODEL, "diagnose__endpoint": "http://host:port/v1"}, "must be the base URL"),
        ({**MODEL, "diagnose__endpoint": "http://[::1/v1"}, "must be the base URL"),
        ({**MODEL, "diagnose__model": None}, "diagnose.model is missing"),
        ({"diagnose__log_agent": True}, "diagnose.log_agent needs a language model"),
        (
            {**MODEL, "diagnose__api_key_env": "OVERLAND_NO_SUCH"},
            "OVERLAND_NO_SUCH, which is not set",
        ),
        ({"diagnose__embedding_model": Path("/nowhere")}, "/nowhere is no folder"),
        ({"diagnose__store": Path("/etc/passwd")}, "/etc/passwd cannot be a folder"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {**MODEL, "diagnose__endpoint": "https://me:hunter2-secret@host/v1"},
        {**MODEL, "diagnose__endpoint": "https://host/v1?key=hunter2-secret"},
        {**MODEL, "diagnose__api_key_env": "sk-hunter2-secret"},
        {**MODEL, "diagnose__api_key_env": "hunter2_secret" * 6},
    ],
)
def test_secrets_are_refused_and_not_repeated(changes: dict[str, Any]) -> None:
    message = refusal(**changes)
    assert "diagnose." in message
    assert "hunter2" not in message


def test_without_the_client_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("configs.diagnose_checks.importlib.util.find_spec", lambda name: None)
    assert "install overland[llm]" in refusal(**MODEL)


def test_an_unknown_key_leads_to_the_known_one(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("data: {paths: [.]}\ndiagnose: {end_point: http://x/v1}\n")
    with pytest.raises(ConfigError, match=r"did you mean diagnose\.endpoint\?"):
        load_config(path)


def test_the_store_lies_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OVERLAND_CASES", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/data/me")
    assert RunConfig().diagnose.resolved_store() == Path("/data/me/overland/cases")
    monkeypatch.setenv("OVERLAND_CASES", "/shared/cases")
    assert RunConfig().diagnose.resolved_store() == Path("/shared/cases")
    assert make(diagnose__store=Path("/a/b")).diagnose.resolved_store() == Path("/a/b")
