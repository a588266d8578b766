"""What the section on regressions refuses; a webhook's URL is in no message."""

from __future__ import annotations

import pytest

from configs.checks import check_config
from configs.errors import ConfigError
from configs.regression_checks import check_regressions
from configs.regression_schema import MetricThreshold, RegressionConfig
from configs.schema import EvaluateConfig, RunConfig

SECRET = "https://hooks.example.com/services/T0P-s3cret"


def only(config: RegressionConfig) -> str:
    (said,) = check_regressions(config)
    return said


def test_defaults_fit() -> None:
    assert list(check_regressions(RegressionConfig())) == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (RegressionConfig(window=3), "min_history (4) must be at most"),
        (RegressionConfig(metrics=["heldout_cloze/"]), "'heldout_cloze/' is no metric"),
        (
            RegressionConfig(thresholds=[MetricThreshold(metric="a"), MetricThreshold(metric="a")]),
            "thresholds names a twice",
        ),
        (RegressionConfig(webhook_env="NOT_THERE_AT_ALL"), "NOT_THERE_AT_ALL, which is not set"),
    ],
)
def test_each_refusal_names_the_key(config: RegressionConfig, said: str) -> None:
    assert said in only(config)
    assert list(check_regressions(config.model_copy(update={"enabled": False}))) == []


@pytest.mark.parametrize("value", ["s3cret", "ftp://s3cret/x", "https://", "http://[s3cret"])
def test_the_webhooks_value_is_never_shown(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ALERT_URL", value)
    said = only(RegressionConfig(webhook_env="ALERT_URL"))
    assert "which holds no URL" in said and "s3cret" not in said
    said = only(RegressionConfig(webhook_env=SECRET))
    assert "must be the name of an environment variable" in said and "s3cret" not in said
    monkeypatch.setenv("ALERT_URL", SECRET)
    assert list(check_regressions(RegressionConfig(webhook_env="ALERT_URL"))) == []


def test_a_run_is_refused_for_it() -> None:
    wrong = EvaluateConfig(regressions=RegressionConfig(window=3))
    with pytest.raises(ConfigError, match=r"evaluate\.regressions\.min_history \(4\) must be"):
        check_config(RunConfig(evaluate=wrong))
