"""Makes an evaluation's plan and ends: a job of its own on a cluster, where GPUs would wait for it.

    python -m tasks.evaluate.make_plan RUN_DIR STEP
    python -m tasks.evaluate.make_plan EVALUATION_DIR

Where it has not run, or was ended, inference makes the plan.
"""

from __future__ import annotations

import sys
from pathlib import Path

from configs.rundir import EvaluationDir
from tasks.evaluate.command import run_command
from tasks.evaluate.holding import at_work
from tasks.evaluate.infer import ensure_plan
from tasks.evaluate.model_folder import check_model
from tasks.evaluate.plan import config_of


def _main(evaluation: EvaluationDir, heldout_dir: Path) -> None:
    with at_work(evaluation):
        check_model(evaluation.model_dir)
        plan = ensure_plan(config_of(evaluation), evaluation, heldout_dir, here=False)
    requests = sum(task.requests for task in plan.tasks)
    print(f"{len(plan.tasks)} tasks with {requests} requests are planned", flush=True)


if __name__ == "__main__":
    sys.exit(run_command("tasks.evaluate.make_plan", _main))
