"""What a server does by itself for flow runs whose process has died.

A flow run says every 30 s that it lives (prefect.yaml sets so). One that does not for a while is marked
as crashed, and a crashed one is scheduled anew: the same flow run, with its parameters. Started again it
goes on where its run directory stands; if its old process lives after all, it waits for it
(flows/session.py), so that the run directory has one writer.
"""

from __future__ import annotations

from datetime import timedelta

from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from flows.deploy.wanted import TAG

SILENCE_LIMIT_S = 100
"""Three heartbeats, and some."""
MAX_STARTS = 20
"""Of one flow run: what dies each time is not started for ever."""
_END_STATES = ("Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Paused", "Suspended")
_OURS = ResourceSpecification.model_validate(
    {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}
)


def automations() -> list[AutomationCore]:
    """Both, as they should be on the server."""
    return [_mark_dead_runs(), _restart_crashed_runs()]


def _mark_dead_runs() -> AutomationCore:
    heartbeat = "prefect.flow-run.heartbeat"
    ends = {f"prefect.flow-run.{state}" for state in _END_STATES}
    return AutomationCore(
        name="overland: mark flow runs of dead workers as crashed",
        description=f"A flow run without a sign of life for {SILENCE_LIMIT_S} s has lost its process.",
        trigger=EventTrigger(
            posture=Posture.Proactive,
            match=ResourceSpecification.model_validate(
                {"prefect.resource.id": "prefect.flow-run.*"}
            ),
            match_related=_OURS,
            for_each={"prefect.resource.id"},
            after={heartbeat},
            expect={heartbeat, *ends},
            threshold=1,
            within=timedelta(seconds=SILENCE_LIMIT_S),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name="Crashed",
                message=f"No sign of life for {SILENCE_LIMIT_S} s: its worker or its machine is gone.",
                force=False,
            )
        ],
    )


def _restart_crashed_runs() -> AutomationCore:
    return AutomationCore(
        name="overland: restart crashed flow runs",
        description=f"They go on where their run directory stands; at most {MAX_STARTS} starts each.",
        trigger=EventTrigger(
            posture=Posture.Reactive,
            match=ResourceSpecification.model_validate(
                {
                    "prefect.resource.id": "prefect.flow-run.*",
                    "prefect.run-count": [str(count) for count in range(1, MAX_STARTS)],
                }
            ),
            match_related=_OURS,
            for_each={"prefect.resource.id"},
            expect={"prefect.flow-run.Crashed"},
            threshold=1,
            within=timedelta(0),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.SCHEDULED,
                name="AwaitingRetry",
                message="Its process has died: it is started again.",
                force=False,
            )
        ],
    )
