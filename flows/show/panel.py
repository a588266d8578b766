"""The live panel: a snapshot as a few lines that are drawn over and over."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flows.show import words
from flows.show.notices import end_of_attempt
from flows.show.scores import one_line
from flows.show.state import Snapshot

_GAP = "   "
_FRAME_WIDTH = 16
"""Border, labels and the gaps around them."""
_BAR_WIDTH = 40
_SHORTEST_BAR_WIDTH = 10
_SILENCE_S = 20.0


def panel(snapshot: Snapshot, name: str, width: int) -> RenderableType:
    """At most seven lines, whatever the run does; each fits `width`."""
    room = width - _FRAME_WIDTH
    lines = Table.grid(padding=(0, 2), expand=True)
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    lines.add_row(snapshot.stage, _headline(snapshot, room))
    if snapshot.step or snapshot.stage == "pretrain":
        lines.add_row("training", _training(snapshot))
        lines.add_row("checkpoint", _checkpoint(snapshot))
    if snapshot.restarts:
        lines.add_row("restarts", _restarts(snapshot))
    if snapshot.evaluations:
        lines.add_row("evaluation", _evaluation(snapshot, room))
    title = Text(words.clean(name, 40), style="bold")
    return Panel(lines, title=title, title_align="left", box=box.ROUNDED, border_style="dim")


def activity(snapshot: Snapshot) -> Text | None:
    """What the run waits for, when it is not making steps; None when it is."""
    attempt = snapshot.attempt
    if snapshot.stage != "pretrain":
        return None
    if attempt is None:
        return Text("starting the training job")
    if attempt.cancelled:
        return Text(f"attempt {attempt.number} was interrupted", "yellow")
    if attempt.stopped:
        return Text(f"attempt {attempt.number} was asked to stop and has saved", "yellow")
    if attempt.ended and attempt.action is None:
        return Text(f"attempt {attempt.number} ended: looking for the cause", "yellow")
    if attempt.ended:
        return Text("restarting", style="yellow")
    if attempt.stopping:
        return Text(f"attempt {attempt.number} is asked to save and leave", "yellow")
    if attempt.last_step is None:
        waited_s = snapshot.time - attempt.record.submitted_at if attempt.record else 0.0
        return Text(f"attempt {attempt.number} is starting, {words.age(waited_s)}")
    silent_s = snapshot.time - (snapshot.last_event_at or snapshot.time)
    if silent_s > max(_SILENCE_S, 5 * (snapshot.step_time_s or 0.0)):
        return Text(f"no step for {words.age(silent_s)}", style="yellow")
    return None


def _headline(snapshot: Snapshot, room: int) -> RenderableType:
    if snapshot.stage == "prepare":
        return Text("reading, cleaning and tokenizing the text")
    total = snapshot.total_steps
    steps = f"{snapshot.step:,}/{total:,} steps" if total else f"{snapshot.step:,} steps"
    text = Text(steps + (f"{_GAP}{100 * snapshot.step // total}%" if total else ""))
    state = _time_left(snapshot)
    if state:
        text = Text.assemble(text, _GAP, state)
    bar_width = min(room - text.cell_len - len(_GAP), _BAR_WIDTH)
    if not total or bar_width < _SHORTEST_BAR_WIDTH:
        return text
    line = Table.grid(padding=(0, len(_GAP), 0, 0))
    line.add_row(_bar(snapshot.step, total, bar_width), text)
    return line


def _bar(step: int, total: int, width: int) -> ProgressBar:
    return ProgressBar(
        total=total,
        completed=step,
        width=width,
        style="bright_black",
        complete_style="cyan",
        finished_style="green",
    )


def _time_left(snapshot: Snapshot) -> Text:
    waiting = activity(snapshot)
    if waiting is not None:
        return waiting
    if snapshot.stage == "pretrain" and snapshot.time_left_s:
        return Text(f"{words.age(snapshot.time_left_s)} left")
    return Text()


def _training(snapshot: Snapshot) -> Text:
    text = Text("loss ")
    text.append(words.loss(snapshot.loss), style="bold")
    if snapshot.validation_loss is not None:
        text.append(f"{_GAP}validation {words.loss(snapshot.validation_loss)}")
    if snapshot.tokens_per_s is not None:
        text.append(f"{_GAP}{words.compact(snapshot.tokens_per_s)} tokens/s")
    if snapshot.step_time_s is not None:
        text.append(f"{_GAP}{words.step_time(snapshot.step_time_s)} a step")
    return text


def _checkpoint(snapshot: Snapshot) -> Text:
    last = snapshot.last_checkpoint
    if last is None:
        text = Text("none yet")
    else:
        ago = words.age(snapshot.time - last.committed_at)
        text = Text(f"step {last.step:,}, {ago} ago{_GAP}{words.size(last.size_bytes)}")
    counts = snapshot.snapshots
    if counts.last_step is not None and (last is None or counts.last_step > last.step):
        text.append(f"{_GAP}snapshot step {counts.last_step:,}")
    if counts.skipped:
        text.append(f"{_GAP}{counts.skipped:,} skipped", style="yellow")
    if snapshot.failed_saves:
        failed = words.plural(len(snapshot.failed_saves), "failed save")
        text.append(f"{_GAP}{failed}", style="yellow")
    return text


def _restarts(snapshot: Snapshot) -> Text:
    last = snapshot.restarts[-1]
    text = Text(f"{len(snapshot.restarts)}{_GAP}last: ")
    text.append(last.failure_class, style="yellow")
    attempt = next(a for a in snapshot.attempts if a.number == last.attempt)
    if attempt.verdict and attempt.verdict.faulty_rank is not None:
        text.append(f", rank {attempt.verdict.faulty_rank}")
    if how := end_of_attempt(attempt):
        text.append(f" ({how})")
    return text


def _evaluation(snapshot: Snapshot, room: int) -> Text:
    text = Text(f"{len(snapshot.scores)} of {len(snapshot.evaluations)} scored")
    if snapshot.evaluation_failures:
        text.append(f"{_GAP}{len(snapshot.evaluation_failures)} failed", style="yellow")
    for live in snapshot.live_evaluations[:2]:
        text.append(f"{_GAP}step {live.step:,}: {live.stage}")
    if snapshot.scores:
        latest = snapshot.scores[-1]
        scores = f"{_GAP}step {latest.step:,}: {one_line(latest.scores, limit=1)}"
        if text.cell_len + len(scores) <= room:
            text.append(scores)
    return text
