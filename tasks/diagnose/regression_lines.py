"""Lines of the regression logs, packed: what a rule that a model proposes must not match.

The logs themselves come with the tests alone (5 MB). Of those with a known cause, the cause's line is here;
of those that rules leave open or that did not fail, all lines: there a learned rule could do harm.
`python -m tests.tasks.diagnose.pack_lines` packs them anew.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from importlib.resources import files

import zstandard

from tasks.diagnose.patterns import Pattern, compile_pattern

FILE_NAME = "regression_lines.json.zst"
_WHOLE_TEXT = re.compile(r"\\[AzZ]|\(\?[a-zA-Z]*-")
"""What makes an expression tell a line's start or end apart from that of a text of many lines."""


@lru_cache(maxsize=1)
def regression_lines() -> dict[str, list[str]]:
    """The lines by the class of their log."""
    packed = files("tasks.diagnose").joinpath(FILE_NAME).read_bytes()
    lines: dict[str, list[str]] = json.loads(zstandard.decompress(packed))
    return lines


def line_of_another_class(pattern: Pattern, failure_class: str) -> tuple[str, str] | None:
    """A class and one of its lines that the pattern matches, other than the given class."""
    in_text = None
    if not _WHOLE_TEXT.search(pattern.pattern):
        in_text = compile_pattern(f"(?m){pattern.pattern}")
    for name, lines in regression_lines().items():
        # To search a text once is quick. Every line that matches does so in the text, too.
        if name == failure_class or (in_text and in_text.search(_text(name)) is None):
            continue
        found = next((line for line in lines if pattern.search(line) is not None), None)
        if found is not None:
            return name, found
    return None


@lru_cache(maxsize=64)
def _text(name: str) -> str:
    return "\n".join(regression_lines()[name])
