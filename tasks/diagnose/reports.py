"""What a line of training's progress reports: its step, its loss."""

from __future__ import annotations

import math

from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_STEP = compile_pattern(
    r"(?i)\b(?:(?:step|iteration|iter|global_step|upd|update)\b['\"]?\s*[=:/\[]?|it ?[=:])\s*(?P<step>\d+)"
)
_SLURM = "slurmstepd: "
COULD_BE_STEP = ("step", "iter", "upd", "it=", "it:", "it =", "it :")
_LOSS = compile_pattern(
    r"(?i)(?:^|[\s{,|:'\"])(?:reduced_)?(?:(?:lm|train(?:ing)?|total|ce|cross[_ -]?entropy|avg|mean)[ _/-]?){0,2}loss(?:_step|[/ ]train)?(?:/total)?['\"]?(?:\s*[:=]\s*|\s+)"
    r"(?P<loss>[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|nan|inf))|"
    r"(?-i:(?:^|[\s{,|'\"])(?:(?:lm|train)_)?(?:ce|nll|xent|cross_entropy)['\"]? ?[=:] ?(?P<entropy>\d+\.\d{2,}(?:e[+-]?\d+)?|nan|inf)\b)"
)
COULD_BE_LOSS = ("loss", "ce=", "ce:", "ce =", 'ce"', "ce'", "nll", "xent", "entropy")
"""In lower case: a line with none of them reports none."""
_OTHER_LOSS = compile_pattern(r"(?i)\b(?:val(?:id(?:ation)?)?|eval(?:uation)?|test)[ _:]loss")
_SUMMARY = "train_runtime"
"""Of a Trainer that has ended: the mean of all losses, or of what was left of them."""
_GRADIENT_LOST = compile_pattern(r"(?i)grad_?norm['\"]?\s*[:=]\s*'?(?:nan|inf)")


def is_step(body: str) -> bool:
    """Whether the line reports a step."""
    return step_in(body) is not None or _LOSS.search(body) is not None


def step_in(body: str) -> int | None:
    """The step that the line reports. Slurm calls a part of a job so too."""
    match = _STEP.search(body)
    if match is None or _SLURM in body:
        return None
    (step,) = match.groups()
    return int(step)


def loss_of(line: LogLine) -> float | None:
    """The training loss that the line reports."""
    match = _LOSS.search(line.body)
    if match is None or _SUMMARY in line.body or _OTHER_LOSS.search(line.body) is not None:
        return None
    loss, entropy = match.groups()
    value = float(loss or entropy)
    if value == 0.0 and _GRADIENT_LOST.search(line.body):
        return math.nan  # some trainers show a loss that is not finite as 0
    return value
