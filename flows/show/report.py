"""The report at the end of a run, and the state of a run that has not ended, for people.

Both are printed through a rich console: colors on a terminal, the same aligned text in a pipe.
Text out of logs is never taken for markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from configs.records import EvaluationFailure, Goodput
from configs.rundir import RunDir, read_record
from flows.show import words
from flows.show.anomalies import print_anomalies
from flows.show.layout import print_facts, print_places, print_tight, section
from flows.show.notices import progress_line
from flows.show.panel import activity
from flows.show.regressions import print_regressions
from flows.show.restarts import print_restarts
from flows.show.scores import ScoreRow, print_scores
from flows.show.state import RunView, Snapshot
from flows.show.summary import (
    AttemptSummary,
    CheckpointSummary,
    RunSummary,
    ScoreSummary,
    build_summary,
    summarize_anomalies,
    summarize_attempts,
    summarize_checkpoints,
    summarize_regressions,
    summarize_scores,
    summarize_unscored,
)
from flows.show.unscored import print_unscored

__all__ = ["RunSummary", "build_summary", "print_report", "print_status", "report_console"]

_GOODPUT_PARTS = (
    ("productive_s", "steps that count"),
    ("recomputed_s", "steps computed again"),
    ("checkpoint_s", "saving checkpoints"),
    ("validation_s", "validation"),
    ("startup_s", "starting attempts"),
    ("detection_s", "noticing failures"),
    ("restart_s", "diagnosis and back-off"),
    ("other_s", "between steps"),
)


def report_console(stream: TextIO) -> Console:
    """A console that prints text as it is: nothing highlighted, no markup, no emoji codes."""
    return Console(file=stream, highlight=False, markup=False, emoji=False)


def print_report(summary: RunSummary, console: Console) -> None:
    """Print a run's result."""
    _print_header(summary, console)
    if summary.failure and summary.failure.interrupted:
        console.print(Text(summary.failure.sentence, "yellow"))
    elif summary.failure:
        _print_failure(summary, console)
    rows = _rows(summary.checkpoints, summary.evaluations, _failure_notes(summary))
    _print_checkpoints(rows, console, rest_in="summary.json")
    print_unscored(summary.unscored_tasks, console)
    print_regressions(summary.regressions, console)
    told = summary.failure.attempt if summary.failure else None
    print_restarts([a for a in summary.attempts if a.number != told], console)
    print_anomalies(summary.anomalies, console)
    if summary.goodput:
        _print_goodput(summary.goodput, console)
    _print_where_to_look(summary, console)


def print_status(
    run: RunDir, console: Console, *, live: bool | None = None, goodput: Goodput | None = None
) -> None:
    """Print where a run stands; `live` says whether a flow works on it, where that is known."""
    snapshot = RunView(run).refresh()
    summary = _current_summary(run, snapshot)
    if summary and not live:
        print_report(summary, console)
        return
    _print_state(run, snapshot, console, live=live)
    notes = {f.step: _failure_note(f) for f in snapshot.evaluation_failures}
    word = "unfinished" if live is False else "running"
    notes |= {e.step: f"{word} ({e.stage})" for e in snapshot.live_evaluations}
    notes |= {left.step: left.said for left in snapshot.evaluations_left_out}
    rows = _rows(summarize_checkpoints(snapshot), summarize_scores(snapshot), notes)
    _print_checkpoints(rows, console, rest_in="checkpoints/ and evaluations/")
    print_unscored(summarize_unscored(snapshot), console)
    print_regressions(summarize_regressions(snapshot), console)
    attempts = summarize_attempts(snapshot)
    print_restarts(attempts, console)
    print_anomalies(summarize_anomalies(snapshot), console)
    if goodput:
        _print_goodput(goodput, console)
    section("where to look", console)
    places = [("run directory", words.short_path(run.path)), *_logs(run.path, attempts)]
    print_places(places, console)


def _current_summary(run: RunDir, snapshot: Snapshot) -> RunSummary | None:
    """summary.json, unless the run went on after it was written."""
    summary = read_record(run.summary_path, RunSummary)
    if summary is None:
        return None
    same = (
        len(summary.attempts) == len(snapshot.attempts)
        and len(summary.checkpoints) == len(snapshot.checkpoints)
        and summary.evaluations == summarize_scores(snapshot)
        and summary.unscored_tasks == summarize_unscored(snapshot)
        and summary.regressions == summarize_regressions(snapshot)
    )
    return summary if same else None


# --- head -----------------------------------------------------------------------------------------


def _print_header(summary: RunSummary, console: Console) -> None:
    parts = [words.plural(summary.final_step, "step")]
    if summary.final_loss is not None:
        parts.append(f"loss {words.loss(summary.final_loss)}")
    if summary.goodput:
        parts.append(f"{words.duration(summary.goodput.wall_s)} wall time")
    restarts = len(summary.attempts) - 1
    if restarts > 0:
        parts.append(words.plural(restarts, "restart"))
    name = words.clean(Path(summary.run_dir).name, 60)
    status: tuple[str, str] = (summary.status, "bold red")
    if summary.status == "completed":
        status = (summary.status, "bold green")
    elif summary.failure and summary.failure.interrupted:
        stopped = summary.attempts and summary.attempts[-1].outcome == "stopped"
        status = ("stopped" if stopped else "interrupted", "bold yellow")
    console.print()
    console.print(Text.assemble((name, "bold"), " ", status, ": ", ", ".join(parts)))


def _print_state(run: RunDir, snapshot: Snapshot, console: Console, *, live: bool | None) -> None:
    working = Text()
    if live is not None:
        state = "at work" if live else "not at work; start it again and it goes on"
        working = Text(f": {state}", "" if live else "yellow")
    console.print()
    console.print(
        Text.assemble((words.clean(run.path.name, 60), "bold"), f" in {snapshot.stage}", working)
    )
    print_tight(Text(progress_line(snapshot) if snapshot.step else "no step yet"), console)
    waiting = activity(snapshot) if live is not False else None
    if waiting:
        console.print(waiting)
    if snapshot.last_event_at and snapshot.stage != "done":
        silent_s = snapshot.time - snapshot.last_event_at
        console.print(Text(f"last event of the training job {words.age(silent_s)} ago", "dim"))


def _print_failure(summary: RunSummary, console: Console) -> None:
    failure = summary.failure
    if failure is None:
        return
    facts = [("what", words.clean(failure.sentence, 600))]
    verdict = failure.verdict
    if verdict and failure.attempt is not None:
        place = f"attempts/{failure.attempt:03d}/{verdict.root_cause_file or 'attempt.json'}"
        if verdict.root_cause_line is not None:
            place += f":{verdict.root_cause_line}"
        rank = "" if verdict.faulty_rank is None else f", rank {verdict.faulty_rank}"
        node = f", node {words.clean(verdict.faulty_node, 60)}" if verdict.faulty_node else ""
        facts.append(("where", place + rank + node))
        if verdict.root_cause_text:
            facts.append(("log says", words.quote(verdict.root_cause_text, 400)))
        if verdict.mitigation:
            facts.append(("what to do", words.clean(verdict.mitigation, 400)))
    if summary.goes_on_from not in ("", "the beginning"):
        again = f"start the run again: it continues from {summary.goes_on_from}"
        facts.append(("to go on", again))
    section("failure", console, style="bold red")
    print_facts(facts, console)


# --- checkpoints -----------------------------------------------------------------------------------


def _rows(
    checkpoints: Sequence[CheckpointSummary],
    scores: Sequence[ScoreSummary],
    notes: dict[int, str],
) -> list[ScoreRow]:
    sizes = {c.step: c.size_bytes for c in checkpoints}
    steps = sorted({*sizes, *(s.step for s in scores), *notes})
    by_step: dict[int, list[ScoreSummary]] = {step: [] for step in steps}
    for score in scores:
        by_step[score.step].append(score)
    return [ScoreRow(s, sizes.get(s), notes.get(s, ""), by_step[s]) for s in steps]


def _failure_notes(summary: RunSummary) -> dict[int, str]:
    failed = {f.step: _failure_note(f) for f in summary.evaluation_failures}
    return failed | {left.step: left.said for left in summary.evaluations_left_out}


def _failure_note(failure: EvaluationFailure) -> str:
    return f"failed in {words.clean(failure.stage, 20)}: {words.clean(failure.reason)}"


def _print_checkpoints(rows: Sequence[ScoreRow], console: Console, *, rest_in: str) -> None:
    section("checkpoints", console)
    if rows:
        print_scores(rows, console, rest_in=rest_in)
    else:
        console.print(Text("none was committed"))


# --- time and places ------------------------------------------------------------------------------


def _print_goodput(goodput: Goodput, console: Console) -> None:
    share = words.percent(goodput.productive_s, goodput.wall_s)
    section("goodput", console, f"{share} of {words.duration(goodput.wall_s)} made progress")
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for name, label in _GOODPUT_PARTS:
        seconds = float(getattr(goodput, name))
        table.add_row(label, words.percent(seconds, goodput.wall_s), f"{seconds:,.1f} s")
    print_tight(table, console)


def _print_where_to_look(summary: RunSummary, console: Console) -> None:
    run_dir = Path(summary.run_dir)
    places = [("run directory", words.short_path(run_dir))]
    if summary.mlflow_run_id:
        places.append(("MLflow run", f"{summary.mlflow_run_id}  (overland ui)"))
    if summary.tracking_uri:
        places.append(("MLflow at", words.clean(summary.tracking_uri)))
    places += _logs(run_dir, summary.attempts)
    section("where to look", console)
    print_places(places, console)


def _logs(run_dir: Path, attempts: Sequence[AttemptSummary]) -> list[tuple[str, str]]:
    """The flow's log; of failed attempts the log that the verdict rests on, or else the folder."""
    failed = [a for a in attempts if a.outcome == "failed"][-3:]
    flow_log = run_dir / "flow.log"
    flow = [("log of the flow", words.short_path(flow_log))] if flow_log.is_file() else []
    return flow + [
        (
            f"log of attempt {a.number}",
            words.short_path(run_dir / (a.root_cause_file or f"attempts/{a.number:03d}")),
        )
        for a in failed
    ]
