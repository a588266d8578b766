"""The stage's one door to lm-eval: takes the process off the network before anything of it is imported."""

from __future__ import annotations

from tasks.evaluate.offline import go_offline

go_offline()  # Hugging Face's libraries read the environment when they are imported.

from lm_eval import evaluate  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.model import LM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

__all__ = ["LM", "Instance", "TaskManager", "evaluate"]
