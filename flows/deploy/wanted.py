"""What a Prefect server should hold: read from prefect.yaml and checked before a server is asked.

The file is Prefect's own, so `prefect deploy --all` reads the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from prefect import Flow
from prefect.client.schemas.schedules import CronSchedule
from prefect.events import DeploymentTriggerTypes
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from pydantic import TypeAdapter, ValidationError

from configs.errors import ConfigError
from configs.load import absolute_paths
from configs.schema import RunConfig

HOME = Path(__file__).resolve().parent.parent.parent
"""Where flows/ is: flow runs start in this folder, and entrypoints are relative to it."""
PREFECT_FILE = HOME / "prefect.yaml"
HOME_VARIABLE = "OVERLAND_HOME"
TAG = "overland"
"""Of each deployment and its flow runs; what the automations go by."""
CRON_SLUG = "overland-cron"
_DEPLOYMENT_KEYS = {
    *("name", "description", "entrypoint", "tags", "parameters", "work_pool"),
    *("concurrency_limit", "schedules", "triggers"),
}
_SCHEDULE_KEYS = {"cron", "timezone", "slug", "parameters", "active"}
_triggers: TypeAdapter[DeploymentTriggerTypes] = TypeAdapter(DeploymentTriggerTypes)


@dataclass(frozen=True)
class WantedSchedule:
    """When a deployment runs by itself; found again by its slug."""

    slug: str
    schedule: CronSchedule
    parameters: dict[str, Any] = field(default_factory=dict)
    active: bool | None = None
    """None: as a person has left it on the page."""


@dataclass(frozen=True)
class WantedDeployment:
    """One deployment, in the server's words."""

    flow: str
    name: str
    fields: dict[str, Any]
    schedules: tuple[WantedSchedule, ...] = ()
    triggers: tuple[DeploymentTriggerTypes, ...] = ()

    @property
    def title(self) -> str:
        """As Prefect writes it."""
        return f"{self.flow}/{self.name}"


def home_folder() -> Path:
    """Where flow runs start: $OVERLAND_HOME, else where this very code lies."""
    return Path(os.environ.get(HOME_VARIABLE) or HOME).absolute()


def read_wanted(path: Path = PREFECT_FILE) -> list[WantedDeployment]:
    """The deployments of the file. ConfigError, in one sentence, when it does not say them rightly."""
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): it says which deployments there are; "
            "give another with --file"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not isinstance(content.get("deployments"), list):
        raise ConfigError(f"{path} has no list `deployments`: Prefect's own format is right")
    pull = _filled_in(content.get("pull") or [])
    found = [_deployment(path, entry, pull) for entry in content["deployments"]]
    titles = [deployment.title for deployment in found]
    for title in sorted({t for t in titles if titles.count(t) > 1}):
        raise ConfigError(f"{path} names deployment {title} twice: once is enough")
    return found


def deployment_of_run(
    wanted: Sequence[WantedDeployment],
    config: RunConfig,
    cron: str | None,
    timezone: str | None,
) -> WantedDeployment:
    """`pipeline` once more, for this run alone: its form is filled in, and it runs once at a time."""
    pipeline = next((d for d in wanted if d.flow == "pipeline"), None)
    if pipeline is None:
        raise ConfigError("there is no deployment of the flow `pipeline` to take as a model")
    if any(d.title == f"pipeline/{config.name}" for d in wanted):
        raise ConfigError(
            f"a run's name must not be a deployment's: give another than {config.name}"
        )
    config = absolute_paths(config)
    fields = pipeline.fields | {
        "description": f"The run in {config.run_dir}. Started again, it goes on.",
        "parameters": {"config": config.model_dump(mode="json")},
        "concurrency_limit": 1,
        "concurrency_options": {"collision_strategy": "ENQUEUE"},
    }
    schedules = (WantedSchedule(CRON_SLUG, _cron("--cron", cron, timezone)),) if cron else ()
    return replace(pipeline, name=config.name, fields=fields, schedules=schedules, triggers=())


def without_empty_definitions(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Some of Prefect's ways to a server leave them out, others do not."""
    return {k: v for k, v in (schema or {}).items() if k != "definitions" or v}


def _filled_in(value: Any) -> Any:
    """With the folder in the place of its variable, as `prefect deploy` does it."""
    if isinstance(value, str):
        return value.replace("{{ $" + HOME_VARIABLE + " }}", str(home_folder()))
    if isinstance(value, list):
        return [_filled_in(item) for item in value]
    if isinstance(value, dict):
        return {key: _filled_in(item) for key, item in value.items()}
    return value


def _deployment(path: Path, entry: Any, pull: list[Any]) -> WantedDeployment:
    if not isinstance(entry, dict) or not entry.get("name") or not entry.get("entrypoint"):
        raise ConfigError(f"{path}: each deployment needs a name and an entrypoint")
    where = f"{path}: deployment {entry['name']}"
    if unknown := sorted(entry.keys() - _DEPLOYMENT_KEYS):
        raise ConfigError(
            f"{where} has a key {unknown[0]!r}, which `overland deploy` does not know"
        )
    try:
        flow: Flow[..., Any] = load_flow_from_entrypoint(str(home_folder() / entry["entrypoint"]))
    except Exception as error:  # whatever a module may raise
        raise ConfigError(f"{where}: {entry['entrypoint']} is no flow: {error}") from error
    pool = entry.get("work_pool") or {}
    if not pool.get("name"):
        raise ConfigError(f"{where} names no work pool: work_pool.name is missing")
    limit = entry.get("concurrency_limit")
    limits = limit if isinstance(limit, dict) else {"limit": limit}
    return WantedDeployment(
        flow=flow.name,
        name=str(entry["name"]),
        fields={
            "description": entry.get("description") or flow.description,
            "entrypoint": entry["entrypoint"],
            "tags": sorted({TAG, *(entry.get("tags") or [])}),
            "parameters": dict(entry.get("parameters") or {}),
            "pull_steps": pull,
            "work_pool_name": pool["name"],
            "work_queue_name": pool.get("work_queue_name", "default"),
            "job_variables": dict(pool.get("job_variables") or {}),
            "concurrency_limit": limits.get("limit"),
            "concurrency_options": {k: v for k, v in limits.items() if k != "limit"} or None,
            "enforce_parameter_schema": True,
            "parameter_openapi_schema": without_empty_definitions(
                parameter_schema(flow).model_dump(mode="json")
            ),
        },
        schedules=tuple(_schedule(where, value) for value in entry.get("schedules") or []),
        triggers=tuple(
            _trigger(where, f"{entry['name']}__automation_{i}", value)
            for i, value in enumerate(entry.get("triggers") or [], start=1)
        ),
    )


def _schedule(where: str, value: Mapping[str, Any]) -> WantedSchedule:
    if unknown := sorted(value.keys() - _SCHEDULE_KEYS):
        raise ConfigError(f"{where}: a schedule has a key {unknown[0]!r}: only cron is known")
    if not value.get("slug"):
        raise ConfigError(f"{where}: each schedule needs a slug, by which it is found again")
    return WantedSchedule(
        slug=str(value["slug"]),
        schedule=_cron(where, value.get("cron"), value.get("timezone")),
        parameters=dict(value.get("parameters") or {}),
        active=value.get("active"),
    )


def _cron(where: str, cron: Any, timezone: Any) -> CronSchedule:
    try:
        return CronSchedule(cron=cron, timezone=timezone or "UTC")
    except ValidationError as error:
        wrong = error.errors()[0]
        words = wrong["msg"].removeprefix("Value error, ")
        if wrong["loc"][:1] == ("timezone",):
            raise ConfigError(
                f"{where}: time zone {timezone!r} is none that is known: give a name like Europe/Berlin"
            ) from error
        raise ConfigError(
            f"{where}: {words}: minute, hour, day of month, month, day of week are right, like "
            "'0 2 * * *'"
        ) from error


def _trigger(where: str, name: str, value: Mapping[str, Any]) -> DeploymentTriggerTypes:
    """Named as `prefect deploy` names it, so that both can be used by turns."""
    try:
        return _triggers.validate_python({"name": name, **value})
    except ValidationError as error:
        raise ConfigError(f"{where}: a trigger is wrong: {error.errors()[0]['msg']}") from error
