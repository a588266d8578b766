"""Says how far an evaluation is: when that has changed, and now and then that it has not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs.rundir import EvaluationDir
from tasks.evaluate.plan import EvaluationPlan, config_of, current_plan
from tasks.evaluate.responses import Pending, failure_path

_SAY_EVERY_S = 10.0
_SAY_UNCHANGED_S = 60.0


class Progress:
    """Says how far an evaluation is, as time goes by."""

    def __init__(self, evaluation: EvaluationDir, say: Callable[[str], None]) -> None:
        self._evaluation = evaluation
        self._say = say
        self._next = time.monotonic() + _SAY_EVERY_S
        self._since = self._spoke = time.monotonic()
        self._said = ""

    def look(self) -> None:
        """Say it when it is time to: at most every ten seconds, and every minute what has not changed."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _SAY_EVERY_S
        words = how_far(self._evaluation)
        if words != self._said:
            self._said, self._since, self._spoke = words, now, now
            self._say(words)
        elif now - self._spoke >= _SAY_UNCHANGED_S:
            self._spoke = now
            self._say(f"{words} (for {(now - self._since) / 60:.0f} min now)")

    def end(self) -> None:
        """Say the last of it, unless that was just said."""
        if (words := how_far(self._evaluation)) != self._said:
            self._say(words)


def how_far(evaluation: EvaluationDir) -> str:
    """How many shards are answered and how many tasks scored, in words."""
    plan = current_plan(config_of(evaluation), evaluation)
    if plan is None:
        return "making the plan"
    shards = [shard for _, shard in plan.shards()]
    left = Pending(evaluation, shards).count()
    given_up = sum(1 for shard in shards if failure_path(evaluation, shard.name).is_file())
    note = f", {given_up} of the shards given up" if given_up else ""
    return (
        f"{len(shards) - left} of {len(shards)} shards {'done' if given_up else 'answered'}, "
        f"{_tasks_scored(evaluation, plan)}{note}"
    )


def _tasks_scored(evaluation: EvaluationDir, plan: EvaluationPlan) -> str:
    """Of this plan; scores of an earlier one may lie there yet."""
    found = [_content(path) for path in evaluation.target_scores_dir.glob("*.json")]
    tried = [content for content in found if content.get("plan_sha256") == plan.sha256()]
    failed = sum(1 for content in tried if content.get("failure"))
    note = f", {failed} failed" if failed else ""
    return f"{len(tried) - failed} of {len(plan.targets)} tasks scored{note}"


def _content(path: Path) -> dict[str, Any]:
    """A target's scores, as they are: their record comes with lm-eval, which takes seconds to import."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
