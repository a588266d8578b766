"""Bringing a server to what is wanted, and saying what that changes.

What is there already stays as it is: a second time changes nothing. What people have made on the page
besides (other schedules, deployments, automations) is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import (
    DeploymentScheduleCreate,
    DeploymentUpdate,
    WorkPoolCreate,
)
from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.schemas.automations import Automation, AutomationCore
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from configs.errors import DeployError, InputError
from flows.deploy.automations import automations
from flows.deploy.wanted import WantedDeployment, WantedSchedule, without_empty_definitions

POOL_TYPE = "process"


@dataclass(frozen=True)
class Change:
    """One thing on the server, and what became (or would become) of it."""

    what: str
    verb: Literal["created", "changed", "removed", "unchanged"]
    details: tuple[str, ...] = ()


class Deployer:
    """Compares and, unless `dry_run`, changes."""

    def __init__(self, client: SyncPrefectClient, *, dry_run: bool) -> None:
        self._client, self._dry_run = client, dry_run

    def deploy(self, wanted: Iterable[WantedDeployment]) -> Iterator[Change]:
        """Work pools first, then the deployments in them, then what concerns all flow runs."""
        wanted = list(wanted)
        for pool in sorted({d.fields["work_pool_name"] for d in wanted}):
            yield self._work_pool(pool)
        for deployment in wanted:
            yield from self._deployment(deployment)
        for automation in automations():
            yield self._automation(
                automation, self._client.read_automations_by_name(automation.name)
            )

    def remove(self, flow: str, name: str) -> Change:
        """Delete a deployment; its flow runs stay."""
        found = self._find(flow, name)
        if found is None:
            raise InputError(
                f"the server has no deployment {flow}/{name}: there is nothing to remove"
            )
        if not self._dry_run:
            self._client.delete_deployment(found.id)
        return Change(f"deployment {flow}/{name}", "removed")

    def pools_without_worker(self, wanted: Iterable[WantedDeployment]) -> list[str]:
        """Work pools whose flow runs nobody would start now."""
        pools = sorted({d.fields["work_pool_name"] for d in wanted})
        return [pool for pool in pools if not self._has_worker(pool)]

    def _has_worker(self, pool: str) -> bool:
        online = WorkerFilter(status=WorkerFilterStatus(any_=["ONLINE"]))
        try:
            return bool(self._client.read_workers_for_work_pool(pool, worker_filter=online))
        except (ObjectNotFound, PrefectHTTPStatusError):
            return False  # In a dry run it may not be there yet.

    def _work_pool(self, name: str) -> Change:
        try:
            pool = self._client.read_work_pool(name)
        except ObjectNotFound:
            if not self._dry_run:
                self._client.create_work_pool(WorkPoolCreate(name=name, type=POOL_TYPE))
            return Change(f"work pool {name}", "created", (f"type {POOL_TYPE}",))
        if pool.type != POOL_TYPE:
            raise DeployError(
                f"work pool {name!r} is there with the type {pool.type!r}, but flows run as processes on "
                f"the login node: remove it, or name another in prefect.yaml"
            )
        return Change(f"work pool {name}", "unchanged")

    # --- deployments ------------------------------------------------------------------------------

    def _deployment(self, wanted: WantedDeployment) -> Iterator[Change]:
        what = f"deployment {wanted.title}"
        found = self._find(wanted.flow, wanted.name)
        if found is None:
            yield Change(what, "created")
            for schedule in wanted.schedules:
                yield Change(
                    f"schedule {schedule.slug} of {wanted.title}", "created", (_cron(schedule),)
                )
            for trigger in wanted.triggers:
                yield Change(f"automation {trigger.name!r}", "created")
            if self._dry_run:
                return
            deployment_id = self._create(wanted)
            for trigger in wanted.triggers:
                trigger.set_deployment_id(deployment_id)
                self._client.create_automation(trigger.as_automation())
            return
        differing = _differences(_current_fields(found), wanted.fields)
        if differing and not self._dry_run:
            changed = {key: wanted.fields[key] for key in differing}
            self._client.update_deployment(found.id, DeploymentUpdate.model_validate(changed))
        details = tuple(f"{key}: {words}" for key, words in differing.items())
        yield Change(what, "changed" if differing else "unchanged", details)
        yield from self._schedules(found, wanted)
        yield from self._owned_automations(found, wanted)

    def _find(self, flow: str, name: str) -> DeploymentResponse | None:
        try:
            return self._client.read_deployment_by_name(f"{flow}/{name}")
        except ObjectNotFound:
            return None

    def _create(self, wanted: WantedDeployment) -> Any:
        flow_id = self._client.create_flow_from_name(wanted.flow)
        schedules = [
            DeploymentScheduleCreate(
                schedule=s.schedule,
                active=s.active is not False,
                parameters=s.parameters,
                slug=s.slug,
            )
            for s in wanted.schedules
        ]
        return self._client.create_deployment(
            flow_id, wanted.name, schedules=schedules, paused=False, **wanted.fields
        )

    def _schedules(self, found: DeploymentResponse, wanted: WantedDeployment) -> Iterator[Change]:
        there = {s.slug: s for s in self._client.read_deployment_schedules(found.id) if s.slug}
        for schedule in wanted.schedules:
            what = f"schedule {schedule.slug} of {wanted.title}"
            current = there.get(schedule.slug)
            if current is None:
                if not self._dry_run:
                    self._client.create_deployment_schedules(
                        found.id,
                        [
                            DeploymentScheduleCreate(
                                schedule=schedule.schedule,
                                active=schedule.active is not False,
                                parameters=schedule.parameters,
                                slug=schedule.slug,
                            )
                        ],
                    )
                yield Change(what, "created", (_cron(schedule),))
                continue
            active = current.active if schedule.active is None else schedule.active
            differing = _differences(
                {
                    "schedule": current.schedule.model_dump(mode="json"),
                    "parameters": current.parameters,
                    "active": current.active,
                },
                {
                    "schedule": schedule.schedule.model_dump(mode="json"),
                    "parameters": schedule.parameters,
                    "active": active,
                },
            )
            if differing and not self._dry_run:
                self._client.update_deployment_schedule(
                    found.id,
                    current.id,
                    active=active,
                    schedule=schedule.schedule,
                    parameters=schedule.parameters,
                )
            details = tuple(f"{key}: {words}" for key, words in differing.items())
            yield Change(what, "changed" if differing else "unchanged", details)

    # --- automations ------------------------------------------------------------------------------

    def _owned_automations(
        self, found: DeploymentResponse, wanted: WantedDeployment
    ) -> Iterator[Change]:
        """Those that start this deployment, known by the names that `prefect deploy` gives too."""
        related = self._client.read_resource_related_automations(f"prefect.deployment.{found.id}")
        rest = [a for a in related if a.name.startswith(f"{wanted.name}__automation_")]
        for trigger in wanted.triggers:
            trigger.set_deployment_id(found.id)
            automation = trigger.as_automation()
            same = [a for a in rest if a.name == automation.name][:1]
            rest = [a for a in rest if a not in same]
            yield self._automation(automation, same)
        for automation in rest:
            if not self._dry_run:
                self._client.delete_automation(automation.id)
            yield Change(f"automation {automation.name!r}", "removed")

    def _automation(self, wanted: AutomationCore, found: Sequence[Automation]) -> Change:
        what = f"automation {wanted.name!r}"
        if not found:
            if not self._dry_run:
                self._client.create_automation(wanted)
            return Change(what, "created")
        current = found[0]
        # One that a person has paused stays paused.
        wanted = wanted.model_copy(update={"enabled": current.enabled})
        keys = ("description", "trigger", "actions")
        differing = [key for key in keys if getattr(current, key) != getattr(wanted, key)]
        if differing and not self._dry_run:
            self._client.update_automation(current.id, wanted)
        paused = () if current.enabled else ("paused by somebody",)
        return Change(what, "changed" if differing else "unchanged", (*differing, *paused))


def _current_fields(found: DeploymentResponse) -> dict[str, Any]:
    limit = found.global_concurrency_limit
    options = found.concurrency_options
    return {
        **found.model_dump(mode="json"),
        "tags": sorted(found.tags),
        "parameter_openapi_schema": without_empty_definitions(found.parameter_openapi_schema),
        "concurrency_limit": limit.limit if limit else None,
        "concurrency_options": options.model_dump(mode="json", exclude_none=True)
        if options
        else None,
    }


def _differences(current: dict[str, Any], wanted: dict[str, Any]) -> dict[str, str]:
    """Key -> what changes, in a few words."""
    return {
        key: _words(current.get(key), value)
        for key, value in wanted.items()
        if current.get(key) != value
    }


def _words(old: Any, new: Any) -> str:
    """Values that a person takes in at once; of others, only that they differ."""
    short = [str(value) if value not in (None, [], {}) else "none" for value in (old, new)]
    return " -> ".join(short) if all(len(text) <= 60 for text in short) else "differs"


def _cron(schedule: WantedSchedule) -> str:
    return f"{schedule.schedule.cron} {schedule.schedule.timezone}"
