"""What is worth a line: the differences between two snapshots of a run, in words."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

from configs.lineage import Lineage, Rollback
from flows.show import words
from flows.show.readers import AttemptView, EvaluationView
from flows.show.scores import one_line
from flows.show.state import Snapshot

_WARNING = "SIGUSR1 (the scheduler's warning that the job's time ends)"


@dataclass(frozen=True)
class Notice:
    """One line for the terminal. `style` is a color for terminals: green, yellow, red or none."""

    time: float
    text: str
    style: str = ""


def notices(before: Snapshot, after: Snapshot) -> list[Notice]:
    """What happened between two snapshots, in order of time."""
    found = [
        *_prepared(before, after),
        *_checkpoints(before, after),
        *_faults(before, after),
        *_anomalies(before, after),
        *_attempts(before, after),
        *_evaluations(before, after),
    ]
    return sorted(found, key=lambda notice: notice.time)


def where_it_stands(snapshot: Snapshot) -> str | None:
    """One line about what was done before; None for a run that has not begun."""
    parts = []
    if snapshot.manifest:
        parts.append("data prepared")
    if snapshot.attempts:
        total = f" of {snapshot.total_steps:,}" if snapshot.total_steps else ""
        parts.append(f"step {snapshot.step:,}{total}")
        parts.append(words.plural(len(snapshot.attempts), "attempt"))
        parts.append(words.plural(len(snapshot.checkpoints), "checkpoint"))
        parts.append(f"{len(snapshot.scores)} evaluated")
    return "found in the run directory: " + ", ".join(parts) if parts else None


def progress_line(snapshot: Snapshot) -> str:
    """Step, losses, speed and time left in one line."""
    total = snapshot.total_steps
    parts = [f"step {snapshot.step:,}"]
    if total:
        parts[0] += f"/{total:,} ({100 * snapshot.step // total}%)"
    parts.append(f"loss {words.loss(snapshot.loss)}")
    if snapshot.validation_loss is not None:
        parts.append(f"validation loss {words.loss(snapshot.validation_loss)}")
    if snapshot.tokens_per_s is not None:
        parts.append(f"{words.compact(snapshot.tokens_per_s)} tokens/s")
    if snapshot.time_left_s:
        parts.append(f"{words.age(snapshot.time_left_s)} left")
    return "  ".join(parts)


def end_of_attempt(attempt: AttemptView) -> str:
    """How an attempt ended, in its launcher's or its signal's words: `signal SIGKILL`."""
    record = attempt.record
    if record is None:
        return ""
    if record.reason:
        return words.clean(record.reason, 120)
    if record.signal is not None:
        return f"signal {signal_name(record.signal)}"
    return f"exit code {record.exit_code}" if record.exit_code is not None else ""


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _prepared(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    manifest = after.manifest
    if manifest is None or manifest == before.manifest:
        return
    documents = manifest.train.documents + manifest.validation.documents
    tokens = manifest.train.tokens + manifest.validation.tokens
    yield Notice(
        manifest.created_at,
        f"prepared {words.plural(documents, 'document')} "
        f"({words.plural(manifest.documents_duplicate, 'duplicate')} and "
        f"{manifest.documents_empty:,} empty dropped): {words.compact(tokens)} tokens, "
        f"vocabulary {manifest.vocab_size:,}, {words.duration(manifest.duration_s)}",
    )


def _attempts(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    known = {attempt.number: attempt for attempt in before.attempts}
    for attempt, previous in zip(after.attempts, (None, *after.attempts), strict=False):
        old = known.get(attempt.number, AttemptView(attempt.number))
        if attempt == old:
            continue
        yield from _submitted(old, attempt, previous)
        if attempt.start != old.start:
            yield from _lost_snapshots(after, attempt.number)
        yield from _started(old, attempt)
        yield from _stopping(old, attempt, after.time)
        yield from _ended(old, attempt)
        yield from _decided(old, attempt)


def _faults(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    for number, fault in after.faults[len(before.faults) :]:
        text = f"injecting fault: {fault.kind} on rank {fault.rank} at step {fault.step:,}"
        yield Notice(fault.time, f"attempt {number}: {text}", "yellow")


def _anomalies(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    for number, anomaly in after.anomalies[len(before.anomalies) :]:
        text = f"attempt {number}: {words.anomaly(anomaly.kind)}: {words.clean(anomaly.message)}"
        yield Notice(anomaly.time, text, "red" if anomaly.fatal else "yellow")


def _lost_snapshots(after: Snapshot, number: int) -> Iterator[Notice]:
    """What an attempt could not start from, though it was wanted."""
    rolled_back = Lineage(
        tuple(
            Rollback(attempt.number, attempt.action.rollback_to_step)
            for attempt in after.attempts
            if attempt.action is not None and attempt.action.rollback_to_step is not None
        )
    )
    for lost in after.lost_snapshots:
        if lost.attempt != number or rolled_back.is_void(attempt=lost.made_by, step=lost.step):
            continue
        text = f"the snapshot of step {lost.step:,} in the node's memory is passed over"
        yield Notice(lost.time, f"{text}: it is gone, or not whole on every rank", "yellow")


def _submitted(
    old: AttemptView, new: AttemptView, previous: AttemptView | None
) -> Iterator[Notice]:
    if new.record and not old.record:
        if previous and previous.record and previous.record.outcome == "completed":
            text = f"attempt {previous.number} was complete, but its last checkpoint is gone or damaged"
            yield Notice(new.record.submitted_at, text, "yellow")
        text = f"attempt {new.number} submitted (job {words.clean(new.record.job_id, 60)})"
        yield Notice(new.record.submitted_at, text)


def _started(old: AttemptView, new: AttemptView) -> Iterator[Notice]:
    start = new.start
    if start is None or start == old.start:
        return
    for name, reason in start.skipped_checkpoints.items():
        text = f"checkpoint {words.clean(name, 60)} is passed over: {words.clean(reason)}"
        yield Notice(start.time, text, "yellow")
    origin = f"restarts from step {start.step:,}" if start.step else "starts at step 0"
    if start.loaded_from == "memory":
        origin += " in the node's memory"
    yield Notice(
        start.time,
        f"attempt {new.number} {origin}: {words.compact(start.num_parameters)} parameters, "
        f"{words.plural(start.world_size, 'process', 'processes')}, {words.clean(start.device, 40)}"
        f", {start.precision}",
    )


def _stopping(old: AttemptView, new: AttemptView, now: float) -> Iterator[Notice]:
    if new.stopping and not old.stopping and not new.ended:
        yield Notice(now, f"attempt {new.number} is asked to save and leave", "yellow")


def _ended(old: AttemptView, new: AttemptView) -> Iterator[Notice]:
    record = new.record
    if record is None or record.outcome is None or old.ended:
        return
    ended_at = record.ended_at or record.submitted_at
    if record.outcome == "completed":
        yield Notice(ended_at, f"attempt {new.number} completed", "green")
        return
    if record.outcome == "stopped":
        why = record.reason.replace("SIGUSR1", _WARNING, 1)
        yield Notice(ended_at, f"attempt {new.number} saved and stopped: {why}", "yellow")
        return
    after = "before its first step" if new.last_step is None else f"after step {new.last_step:,}"
    how = end_of_attempt(new)
    text = f"attempt {new.number} {record.outcome} {after}" + (f": {how}" if how else "")
    yield Notice(ended_at, text, "red")


def _decided(old: AttemptView, new: AttemptView) -> Iterator[Notice]:
    verdict, action = new.verdict, new.action
    if verdict is None or action is None or action == old.action:
        return
    rank = "" if verdict.faulty_rank is None else f", rank {verdict.faulty_rank}"
    node = f" on {words.clean(verdict.faulty_node, 60)}" if verdict.faulty_node else ""
    quote = words.quote(verdict.root_cause_text, 160)
    text = f"verdict: {verdict.failure_class}{rank}{node}" + (f': "{quote}"' if quote else "")
    yield Notice(action.decided_at, text, "yellow")
    kind = "stop" if action.stop else words.ACTION_WORDS[action.kind]
    text = f"action: {kind}: {words.clean(action.reason)}"
    yield Notice(action.decided_at, text, "red" if action.stop else "yellow")


def _checkpoints(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    for checkpoint in sorted(
        set(after.checkpoints) - set(before.checkpoints), key=lambda c: c.step
    ):
        yield Notice(
            checkpoint.committed_at,
            f"checkpoint of step {checkpoint.step:,} committed "
            f"({words.size(checkpoint.size_bytes)}, {words.duration(checkpoint.duration_s)})",
        )
    for save in after.failed_saves[len(before.failed_saves) :]:
        text = f"checkpoint of step {save.step:,} could not be saved: {words.clean(save.error)}"
        yield Notice(save.time, text, "yellow")


def _evaluations(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    known = {evaluation.step: evaluation for evaluation in before.evaluations}
    for new in after.evaluations:
        old = known.get(new.step, EvaluationView(new.step, ""))
        if new.scores and not old.scores:
            ended_at = new.scores.ended_at or after.time
            scores = one_line(new.scores.scores)
            yield Notice(ended_at, f"evaluation of step {new.step:,}: {scores}", "green")
            for task, reason in new.scores.failed.items():
                text = f"step {new.step:,} has no scores of {words.clean(task, 60)}"
                yield Notice(ended_at, f"{text}: {words.clean(reason)}", "yellow")
        elif new.failure and new.failure != old.failure:
            failure = new.failure
            text = f"evaluation of step {new.step:,} failed in {words.clean(failure.stage, 30)}"
            reason = words.clean(failure.reason)
            yield Notice(failure.failed_at, f"{text}: {reason}", "yellow")
        elif new.left_out and not old.left_out:
            text = f"evaluation of step {new.step:,} is {new.left_out.said}"
            yield Notice(new.left_out.left_out_at, text, "yellow")
        report = new.regressions
        if report and report.regressions and not old.regressions:
            text = f"step {new.step:,} has regressed: {words.clean(report.said)}"
            if report.unhealthy:
                text += "; it counts as not healthy"
            yield Notice(report.judged_at, text, "red" if report.is_new else "yellow")
