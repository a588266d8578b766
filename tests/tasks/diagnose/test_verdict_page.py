"""The verdict on Prefect's page: text from logs is shown, and forms nothing."""

from __future__ import annotations

import html
import re
import string

from hypothesis import given
from hypothesis import strategies as st

from tasks.diagnose.logs import LogLine
from tasks.diagnose.verdict_page import plain, verdict_page
from tasks.diagnose.verdicts import make_verdict

HOSTILE = (
    "| a | b | `rm` ``` <script>alert(1)</script> <img src=x onerror=y> &amp; [x](javascript:y) "
    "https://evil.example/a www.evil.example # _a_ **b** ~~c~~ <!-- -->"
)


def test_what_a_log_says_forms_no_markup() -> None:
    root = LogLine("rank_0`.log", 3, 0, HOSTILE, HOSTILE)
    verdict = make_verdict(
        "KeyError",
        method="exception",
        confidence=0.8,
        root=root,
        node="n<b>1",
        evidence=["one\n# two\r\n| three |"],
        mitigation="Read `x` | <b>now</b>",
    )
    page = verdict_page(2, verdict)
    assert not re.search(r"(?<!\\)[`|*_<>\[\]~]", page)
    assert "https:" not in page and "www.e" not in page
    assert page.count("\n#") == 0, "the title begins the page, and no other line is one"
    for line in verdict.evidence:
        assert shown(plain(line)) == " ".join(line.split())


def test_the_page_holds_the_verdict() -> None:
    root = LogLine("rank_00003.log", 7, 3, "KeyError: 'lr'", "KeyError: 'lr'")
    verdict = make_verdict("KeyError", method="exception", confidence=0.8, root=root, rank=3)
    page = shown(verdict_page(2, verdict))
    for said in (
        "Attempt 2: KeyError",
        "- rank: 3",
        "rank_00003.log:7",
        "0.80",
        verdict.mitigation,
    ):
        assert said in page


@given(st.text(string.printable, max_size=80))
def test_any_text_is_shown_as_it_is(text: str) -> None:
    assert shown(plain(text)) == " ".join(text.split())


def shown(markdown: str) -> str:
    """What a reader sees: escapes and entities are what they stand for."""
    return html.unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", markdown))
