"""Jobs that a person or the scheduler ended: what their ranks print then comes of it."""

from __future__ import annotations

from tasks.diagnose.findings import Finding
from tasks.diagnose.scan import Scan

CANCELLED = ("slurm_cancelled", "interrupted")
_ALSO_OF_A_CANCEL = ("process_killed", "process_crashed", "dataloader_worker_terminated")
_OF_THE_JOB = "*** JOB "
_WHEN = " CANCELLED AT "
_SRUN_ENDS = "srun: error: "
OF_A_LOST_PEER = ("peer_connection_lost", "nccl_remote", "nccl_remote_peer")


def without_what_comes_of_a_cancel(scan: Scan) -> list[Finding]:
    """The effects that no cancel explains, and the cancels themselves."""
    effects = [f for f in scan.fatal("effect") if not _of_a_failed_task(f, scan)]
    cancels = [f for f in effects if f.method in CANCELLED]
    if _cancel_came_first(scan) or _ranks_miss_an_interrupted_one(effects):
        return cancels
    return [f for f in effects if f.method not in _ALSO_OF_A_CANCEL] if cancels else effects


def ended_by_the_books(scan: Scan) -> Finding | None:
    """How Slurm's accounting says that the job ended, unless what ranks say is more than comes of that.

    A person may well cancel a job that has failed in some way of its own.
    """
    ending = scan.accounting.ending()
    if ending is None or ending.failure_class != "SlurmCancelled":
        return ending
    if (cancel := _cancel_on_the_books(scan, scan.fatal("effect"))) is not None:
        return cancel
    comes_of_it = (*CANCELLED, *_ALSO_OF_A_CANCEL, *OF_A_LOST_PEER)
    effects = scan.fatal("effect")
    if not all(f.method in comes_of_it for f in effects):
        return None
    return next((f for f in effects if f.method == "slurm_cancelled"), ending)


def without_what_came_after_a_cancel(causes: list[Finding], scan: Scan) -> list[Finding]:
    """The causes, unless the whole job had been cancelled before anything else went wrong."""
    effects = [f for f in scan.findings if f.role == "effect" and not scan.survived(f)]
    first = min((*effects, *causes), key=lambda f: f.order, default=None)
    if _cancel_on_the_books(scan, [*effects, *causes]) is not None:
        return []
    if first is None or first.method != "slurm_cancelled":
        return causes
    cancel = next((f for f in effects if _OF_THE_JOB in f.line.text), None)
    if cancel is not None and _moment_of(first) == _moment_of(cancel) is not None:
        cancel = first  # Slurm ended the step for the job's sake.
    others = (f for f in (*effects, *causes) if f.method not in CANCELLED)
    before = cancel is not None and all(f.order > cancel.order for f in others)
    if cancel is None or not before:
        return causes
    return [f for f in causes if f.line.file != cancel.line.file]


def _moment_of(cancel: Finding) -> str | None:
    """When Slurm cancelled the step or the job, as it says itself; the line may have come later."""
    stamp = cancel.line.text.partition(_WHEN)[2].split(" ", 1)[0]
    return stamp or None


def _cancel_on_the_books(scan: Scan, found: list[Finding]) -> Finding | None:
    """The job's or step's cancel, if accounting has it so and Slurm's word of it stands before all else in the log."""
    ending = scan.accounting.ending()
    if ending is None or ending.failure_class != "SlurmCancelled":
        return None
    in_order = sorted(found, key=lambda f: f.order)
    first = next((f for f in in_order if f.method == "slurm_cancelled"), None)
    if first is None or any(f.line.file != first.line.file for f in in_order):
        return None
    begun = next((f for f in in_order if f.method in CANCELLED), first).order
    begun = min(begun, scan.accounting.aborted.get(first.line.file, begun))
    is_first = in_order[0].order >= begun and not _of_a_failed_task(first, scan)
    return first if is_first else None


def _of_a_failed_task(finding: Finding, scan: Scan) -> bool:
    """Whether srun has ended the other tasks, and with them the step, because one had failed."""
    failed = scan.survival.task_failed
    ended_by_srun = _SRUN_ENDS in finding.line.text or " STEP " in finding.line.text
    return (
        failed is not None
        and finding.method in ("process_killed", "slurm_cancelled")
        and ended_by_srun
        and failed.file == finding.line.file
        and failed.number < finding.line.number
    )


def _ranks_miss_an_interrupted_one(effects: list[Finding]) -> bool:
    """Whether all that other ranks say is that a peer is gone, and some rank was interrupted.

    Their files tell no order. But launchers end the ranks that are left by SIGTERM, so a lost peer
    interrupts nobody.
    """
    interrupted = {f.rank for f in effects if f.method == "interrupted"}
    others = [f for f in effects if f.method not in CANCELLED]
    return (
        bool(interrupted)
        and None not in interrupted
        and all(f.method in OF_A_LOST_PEER and f.rank not in {None, *interrupted} for f in others)
    )


def _cancel_came_first(scan: Scan) -> bool:
    """Whether a cancel stands before all else, not as srun's answer to a task that has failed."""
    effects = [f for f in scan.findings if f.role == "effect" and not scan.survived(f)]
    if not effects or effects[0].method not in CANCELLED:
        return False
    first, failed = effects[0].line, scan.survival.failed_exit()
    in_one_file = all(f.line.file == first.file for f in effects)
    return in_one_file and (failed is None or failed.number > first.number)
