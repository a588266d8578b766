"""What differs between the versions of Slurm's REST interface.

Two dialects are enough: v0.0.38 (Slurm 22.05), and v0.0.40 to v0.0.45 (23.11 to 26.05), in which only
paths differ. Each turns a request into a payload and an answer into our types. Traps of v0.0.38: a list
of node counts is ignored, `"requeue": false` means true, `"no_kill": true` is refused, and there are no
`required_nodes`.
"""

from __future__ import annotations

from typing import Any

from infra.launch.slurm_types import (
    AccountedJob,
    JobRequest,
    SlurmJob,
    SlurmNode,
    expand,
    split_states,
)

OLD_VERSION = "v0.0.38"
VERSIONS = (*(f"v0.0.{number}" for number in range(45, 39, -1)), OLD_VERSION)
"""All that we speak, the best first."""
WARNING_SIGNAL = "USR1"


class Dialect:
    """v0.0.40 and later."""

    can_drain = True
    tells_objections = False
    """Whether a submission's answer says that the job can never start."""

    def __init__(self, version: str) -> None:
        self.version = version

    def path(self, collection: str) -> str:
        """Of a whole collection, like jobs."""
        return f"/slurm/{self.version}/{collection}/"

    def item_path(self, kind: str, name: str) -> str:
        """Of one thing, like job 17."""
        return f"/slurm/{self.version}/{kind}/{name}"

    def payload(self, request: JobRequest) -> dict[str, Any]:
        """The body of a submission."""
        job = _common(request)
        job |= {
            "environment": [f"{name}={value}" for name, value in request.environment.items()],
            "open_mode": ["APPEND"],
            "requeue": False,
        }
        if request.gres:
            job["tres_per_node"] = f"gres/{request.gres}"
        if request.memory_per_node_mib is not None:
            job["memory_per_node"] = _number(request.memory_per_node_mib)
        if request.time_limit_minutes is not None:
            job["time_limit"] = _number(request.time_limit_minutes)
        if request.warning_s is not None:
            job["kill_warning_signal"] = WARNING_SIGNAL
            job["kill_warning_delay"] = _number(request.warning_s)
        if request.exclude_nodes:
            job["excluded_nodes"] = list(request.exclude_nodes)
        if request.need_nodes:
            job["required_nodes"] = list(request.need_nodes)
        if request.survives_nodes:
            job["kill_on_node_fail"] = False
        return {"script": request.script, "job": job}

    def job(self, value: dict[str, Any]) -> SlurmJob:
        """A job out of an answer."""
        exit_code, signal = self._exit(value.get("exit_code"))
        derived, derived_signal = self._exit(value.get("derived_exit_code"))
        states = value["job_state"]
        state, flags = split_states([states] if isinstance(states, str) else list(states))
        if _time(value.get("preempt_time")):  # Of this start; v0.0.38 has no flag for it.
            flags |= {"PREEMPTED"}
        return SlurmJob(
            job_id=value["job_id"],
            comment=value.get("comment") or "",
            state=state,
            flags=flags,
            reason=value.get("state_reason") or "",
            nodes=expand(value.get("nodes") or ""),
            exit_code=exit_code,
            signal=signal,
            derived_exit_code=derived_signal + 128 if derived_signal else derived,
            restarts=value.get("restart_cnt") or 0,
            started_at=_time(value.get("start_time")),
            ended_at=_time(value.get("end_time")),
            partition=value.get("partition") or "",
        )

    def accounted(self, value: dict[str, Any]) -> AccountedJob:
        """A job out of an answer of slurmdbd, which is written in another way."""
        state, times = value["state"], value.get("time") or {}
        exit_code, signal = self._accounted_exit(value.get("exit_code"))
        current = state["current"]
        base, flags = split_states([current] if isinstance(current, str) else list(current))
        nodes = value.get("nodes") or ""
        job = SlurmJob(
            job_id=value["job_id"],
            comment=(value.get("comment") or {}).get("job") or "",
            state=base,
            flags=flags,
            reason=state.get("reason") or "None",
            nodes=() if nodes == "None assigned" else expand(nodes),
            exit_code=exit_code,
            signal=signal,
            derived_exit_code=None,
            restarts=0,
            started_at=_time(times.get("start")),
            ended_at=_time(times.get("end")),
        )
        return AccountedJob(job, value.get("name") or "", _time(times.get("submission")) or 0.0)

    def _accounted_exit(self, value: Any) -> tuple[int | None, int | None]:
        return self._exit(value)

    def node(self, value: dict[str, Any]) -> SlurmNode:
        """A node out of an answer."""
        state, *flags = self._node_states(value)
        return SlurmNode(
            name=value["name"],
            state=state,
            flags=frozenset(flags),
            reason=value.get("reason") or "",
            partitions=tuple(value.get("partitions") or ()),
        )

    def _exit(self, value: Any) -> tuple[int | None, int | None]:
        """Exit code and signal; both None when there is no end yet."""
        if not isinstance(value, dict):
            return None, None
        signal = value.get("signal") or {}
        return _plain(value.get("return_code")), _plain(signal.get("id")) or None

    def _node_states(self, value: dict[str, Any]) -> list[str]:
        return [state.upper() for state in value["state"]] or ["UNKNOWN"]


class OldDialect(Dialect):
    """v0.0.38."""

    can_drain = False
    tells_objections = True

    def __init__(self) -> None:
        super().__init__(OLD_VERSION)

    def path(self, collection: str) -> str:
        return f"/slurm/{self.version}/{collection}"

    def payload(self, request: JobRequest) -> dict[str, Any]:
        job = _common(request)
        job |= {"environment": dict(request.environment), "open_mode": "append"}
        if request.gres:
            job["gres"] = request.gres
        if request.memory_per_node_mib is not None:
            job["memory_per_node"] = request.memory_per_node_mib
        if request.time_limit_minutes is not None:
            job["time_limit"] = request.time_limit_minutes
        if request.warning_s is not None:
            job["signal"] = f"{WARNING_SIGNAL}@{request.warning_s}"
        if request.exclude_nodes:
            job["exclude_nodes"] = ",".join(request.exclude_nodes)
        if request.need_nodes:
            job["nodelist"] = ",".join(request.need_nodes)
        if request.survives_nodes:
            job["no_kill"] = "set"
        return {"script": request.script, "job": job}

    def _exit(self, value: Any) -> tuple[int | None, int | None]:
        """The number is a wait status."""
        if not isinstance(value, int):
            return None, None
        return (value >> 8) & 255, value & 127 or None

    def _accounted_exit(self, value: Any) -> tuple[int | None, int | None]:
        """It is 0 whatever happened."""
        return None, None

    def _node_states(self, value: dict[str, Any]) -> list[str]:
        return [value["state"].upper(), *(flag.upper() for flag in value.get("state_flags") or [])]


def make_dialect(version: str) -> Dialect:
    """The dialect of one of VERSIONS."""
    return OldDialect() if version == OLD_VERSION else Dialect(version)


def is_default(partition: dict[str, Any]) -> bool:
    """Whether jobs go there that name no partition; not every version says so."""
    flags = partition.get("flags")
    return isinstance(flags, list) and "DEFAULT" in [str(flag).upper() for flag in flags]


def _common(request: JobRequest) -> dict[str, Any]:
    job: dict[str, Any] = {
        "name": request.name,
        "comment": request.comment,
        "current_working_directory": request.folder,
        "standard_output": request.output,
        "nodes": f"{request.nodes}-{request.nodes + request.more_nodes}",
        "cpus_per_task": request.cpus_per_node,
    }
    if not request.more_nodes:  # With a number of tasks, Slurm gives no more nodes than that.
        job |= {"tasks": request.nodes, "tasks_per_node": 1}
    for key in ("partition", "account", "qos", "nice", "constraints", "dependency"):
        if (value := getattr(request, key)) is not None:
            job[key] = value
    return job


def _number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def _plain(value: Any) -> int | None:
    """A number that may be absent, infinite or wrapped."""
    if isinstance(value, dict):
        return value.get("number") if value.get("set") and not value.get("infinite") else None
    return value if isinstance(value, int) else None


def _time(value: Any) -> float | None:
    seconds = _plain(value)
    return float(seconds) if seconds else None
