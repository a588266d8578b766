"""Verdict + history -> action, within the budgets. Pure: the clock is the caller's.

Two budgets of the config end loops: restarts of the whole run, and restarts for one failure class
without a new checkpoint in between. Both count automatic restarts since a person last started the
run: after a stop, or an interruption, someone has looked at it.

The wait before a restart doubles with each one for the same cause that brought nothing new.

A loss spike is followed by a rollback, which has a budget of its own beside that of all restarts.
After weights that differ between replicas, what was saved since they were last equal is void.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from configs.events import AnomalyEvent, CheckpointEvent
from configs.nodecheck import NodeCheckReport
from configs.records import Action, ActionKind, Verdict
from configs.rundir import AttemptDir, RunDir
from configs.schema import RecoveryConfig
from tasks.recover.node_history import still_excluded
from tasks.recover.place import Place, place_by_check, place_by_logs
from tasks.recover.rollback import Ground, PastRollback, roll_back_and_skip

MAX_WAIT_S = 600.0


@dataclass(frozen=True)
class PastAttempt:
    """What deciding needs to know of an attempt that has ended."""

    number: int
    verdict: Verdict | None
    """None when a person interrupted it."""
    action: Action | None = None
    """What was decided; None for the attempt that is being decided on."""
    completed: bool = False
    committed_steps: tuple[int, ...] = ()
    """Steps of the checkpoints that it committed."""
    nodes: tuple[str, ...] = ()
    anomaly: AnomalyEvent | None = None
    """What it ended itself over."""

    @property
    def restarted(self) -> bool:
        """Whether the next attempt was an automatic restart after this one."""
        return self.action is not None and not self.action.stop


def attempt_history(run: RunDir) -> list[PastAttempt]:
    """The run's attempts that have ended, in order."""
    committed = _committed_steps(run)
    return [
        _past_attempt(attempt, tuple(sorted(committed.get(attempt.number, ()))))
        for attempt in run.attempts()
        if (record := attempt.record()) is not None and record.outcome is not None
    ]


def decide(
    history: Sequence[PastAttempt],
    config: RecoveryConfig,
    *,
    now: float,
    pool: Sequence[str] = (),
    ground: Ground | None = None,
    check: NodeCheckReport | None = None,
) -> Action:
    """What to do about the last attempt of `history`, which has a verdict and no action yet.

    `pool` names all nodes that jobs can run on; empty: no others than the attempt's are known.
    `ground` is what the run can go back to; an anomaly needs it. `check` is what a node check has found.
    """
    last = history[-1]
    if last.completed:
        return Action(kind="none", stop=False, reason="training is complete", decided_at=now)
    if last.verdict is None:
        return _stop("none", f"attempt {last.number} was interrupted by a person", now)
    verdict = last.verdict
    if verdict.action == "fix_by_user":
        text = verdict.root_cause_text.removeprefix(f"[rank{verdict.faulty_rank}]: ")
        quoted = f": {text[:200]}" if text else ""
        return _stop("fix_by_user", f"a restart does not cure {_cause(verdict)}{quoted}", now)
    if verdict.action == "none" and verdict.failure_class != "NoFailure":
        return _stop("none", f"the job was ended on purpose ({_cause(verdict)})", now)
    if verdict.failure_class == "LossSpike" and last.anomaly and ground:
        return _roll_back(history, last.anomaly, config, now, ground)
    place = _place(verdict, history, config, pool, check, now)
    action = _restart(history, verdict, config, now, place, ground)
    if last.anomaly and ground:
        return _without_what_is_newer(action, last.anomaly, ground)
    return action


def _roll_back(
    history: Sequence[PastAttempt],
    anomaly: AnomalyEvent,
    config: RecoveryConfig,
    now: float,
    ground: Ground,
) -> Action:
    """Go back behind a loss spike, if the budgets of rollbacks and of restarts allow it."""
    automatic = _since_a_person_started(history)
    past = [
        PastRollback(attempt.anomaly, attempt.action)
        for attempt in history[len(history) - 1 - automatic : -1]
        if attempt.anomaly and attempt.action and attempt.action.kind == "rollback_skip_data"
    ]
    action = roll_back_and_skip(anomaly, past, config, ground, now)
    if not action.stop and automatic >= config.max_restarts:
        reason = _no_restart_is_left(config, anomaly.message)
        return _without_what_is_newer(_stop("fix_by_user", reason, now), anomaly, ground)
    return action


def _without_what_is_newer(action: Action, anomaly: AnomalyEvent, ground: Ground) -> Action:
    """The action, after which nothing counts that was saved since the anomaly began."""
    return action.model_copy(update={"rollback_to_step": ground.healthy_step(anomaly)})


def _restart(
    history: Sequence[PastAttempt],
    verdict: Verdict,
    config: RecoveryConfig,
    now: float,
    place: Place,
    ground: Ground | None,
) -> Action:
    automatic = _since_a_person_started(history)
    same = _same_cause_without_progress(history, automatic)
    kind, cause = place.kind, _cause(verdict)
    if automatic >= config.max_restarts:
        return _stop(kind, _no_restart_is_left(config, cause), now)
    if same >= config.max_restarts_per_cause:
        if not same:
            none = f"recovery.max_restarts_per_cause = 0 allows no restart: {cause}"
            return _stop(kind, none, now)
        tried = "1 restart" if same == 1 else f"{same} restarts"
        return _stop(kind, f"{cause} came back after {tried} without a new checkpoint", now)
    step = _newest_step(history, ground)
    start = f"from step {step}" if step else "from the beginning"
    wait_s = min(config.backoff_s * 2**same, MAX_WAIT_S)
    return Action(
        kind=kind,
        stop=False,
        reason=f"restart {automatic + 1} of {config.max_restarts} {start}: {cause}{place.said}",
        wait_s=wait_s,
        exclude_nodes=list(place.exclude),
        decided_at=now,
    )


def _no_restart_is_left(config: RecoveryConfig, last: str) -> str:
    if not config.max_restarts:
        return f"recovery.max_restarts = 0 allows no restart: {last}"
    one = config.max_restarts == 1
    count = "the 1 restart of the run is" if one else f"all {config.max_restarts} restarts are"
    return f"{count} used up (recovery.max_restarts); last: {last}"


def _newest_step(history: Sequence[PastAttempt], ground: Ground | None) -> int:
    """The checkpoint that the next attempt starts from."""
    anomaly = history[-1].anomaly
    if ground is None:
        return max((s for attempt in history for s in attempt.committed_steps), default=0)
    return ground.healthy_step(anomaly) if anomaly else ground.newest_step


def _place(
    verdict: Verdict,
    history: Sequence[PastAttempt],
    config: RecoveryConfig,
    pool: Sequence[str],
    check: NodeCheckReport | None,
    now: float,
) -> Place:
    if check is not None:
        return place_by_check(verdict, check, exclude_slow=config.node_check.exclude_slow)
    gone = still_excluded((a.action for a in history), config.node_check, now=now)
    return place_by_logs(verdict, gone, pool, max(len(history[-1].nodes), 1))


def _since_a_person_started(history: Sequence[PastAttempt]) -> int:
    """Automatic restarts, counted back from the last attempt."""
    count = 0
    for attempt in reversed(history[:-1]):
        if not attempt.restarted:
            break
        count += 1
    return count


def _same_cause_without_progress(history: Sequence[PastAttempt], automatic: int) -> int:
    """How many restarts this failure class has had since the last new checkpoint."""
    failure_class = history[-1].verdict.failure_class if history[-1].verdict else None
    count = 0
    for index in range(len(history) - 1, len(history) - 1 - automatic, -1):
        if _made_progress(history, index):
            break
        earlier = history[index - 1].verdict
        count += earlier is not None and earlier.failure_class == failure_class
    return count


def _made_progress(history: Sequence[PastAttempt], index: int) -> bool:
    """Whether an attempt committed a checkpoint further on than any before it."""
    before = max((s for a in history[:index] for s in a.committed_steps), default=0)
    return max(history[index].committed_steps, default=0) > before


def _cause(verdict: Verdict) -> str:
    where = f" on rank {verdict.faulty_rank}" if verdict.faulty_rank is not None else ""
    return f"{verdict.failure_class}{where}"


def _stop(kind: ActionKind, reason: str, now: float) -> Action:
    return Action(kind=kind, stop=True, reason=reason, decided_at=now)


def _past_attempt(attempt: AttemptDir, committed: tuple[int, ...]) -> PastAttempt:
    record = attempt.record()
    return PastAttempt(
        number=attempt.number,
        verdict=attempt.verdict(),
        action=attempt.action(),
        completed=record is not None and record.outcome == "completed",
        committed_steps=committed,
        nodes=tuple(record.nodes) if record else (),
        anomaly=next(
            (e for e in attempt.events() if isinstance(e, AnomalyEvent) and e.fatal), None
        ),
    )


def _committed_steps(run: RunDir) -> dict[int, set[int]]:
    """Checkpoints by the attempt that committed them: markers, and events of those since removed.

    A marker counts even when its job died before it could write the event.
    """
    committed: dict[int, set[int]] = {}
    for checkpoint in run.committed_checkpoints():
        marker = checkpoint.marker()
        if marker is not None:
            committed.setdefault(marker.attempt, set()).add(marker.step)
    for attempt in run.attempts():
        for event in attempt.events():
            if isinstance(event, CheckpointEvent) and event.outcome == "committed":
                committed.setdefault(attempt.number, set()).add(event.step)
    return committed
