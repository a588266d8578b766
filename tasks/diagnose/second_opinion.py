"""A second opinion on what rules say: the words of the whole log, where they speak clearly for another class.

Rules that have met a kind are right where words mislead, and words are often right where rules meet a
kind that they do not know. So the words decide only against long odds, and never that nothing failed or
that ranks lost each other.
"""

from __future__ import annotations

from configs.records import Verdict
from tasks.diagnose.compressed import Compressed
from tasks.diagnose.endings import hang
from tasks.diagnose.findings import Finding
from tasks.diagnose.handled import is_sampled
from tasks.diagnose.logs import LogLine
from tasks.diagnose.place import node_of, rank_of
from tasks.diagnose.scan import Scan
from tasks.diagnose.verdicts import DECISIVE_CONFIDENCE, MAX_EVIDENCE, make_verdict
from tasks.diagnose.word_model import word_model

METHOD = "words"
_RULES_STAND = frozenset({"NoFailure", "LossSpike"})
"""Classes that rules take from numbers and endings, which the words of kept lines do not show."""
_NEVER_BY_WORDS = frozenset(
    {"NoFailure", "Unknown", "LossSpike", "NCCLTimeoutError", "NCCLRemoteError"}
)
"""The last are what ranks say in many words when another has failed: six of six such switches were wrong."""
_ODDS = 10.0
"""Of ten sets of logs that rules and model had not met, 48 switches were right at these odds, 8 wrong."""
_LEAST_SHARE = 1e-3
_SHARE_AGAINST_DECISIVE = 0.55
"""Ten of eleven such switches were right above it: a node's old fault, a limit that came after the failure."""
_MOST_CONFIDENT = 0.8
_FEWEST_LINES = 8
"""Of fewer, a word too many turns the scales."""


def with_second_opinion(verdict: Verdict, scan: Scan, logs: Compressed) -> Verdict:
    """The rules' verdict, or the one that the words of the logs speak for ten times as clearly."""
    kept = logs.kept
    if verdict.failure_class in _RULES_STAND or len(kept) < _FEWEST_LINES:
        return verdict
    words = word_model().likelihood([line for line in kept if not is_sampled(line.body)])
    if words is None or words.likeliest in _NEVER_BY_WORDS:
        return verdict
    share, rules_share = words.by_class[words.likeliest], words.by_class[verdict.failure_class]
    if words.likeliest == verdict.failure_class or share < _ODDS * (rules_share + _LEAST_SHARE):
        return verdict
    if verdict.confidence >= DECISIVE_CONFIDENCE and share < _SHARE_AGAINST_DECISIVE:
        return verdict
    said = f"the log's words are those of {words.likeliest} ({share:.2f}); rules alone say {verdict.failure_class}"
    found = _of_class(words.likeliest, words.line, scan)
    quotes = [*found.evidence[:2], said, *verdict.evidence]
    return found.model_copy(
        update={
            "confidence": round(min(share, _MOST_CONFIDENT), 2),
            "method": METHOD,
            "evidence": list(dict.fromkeys(quotes))[:MAX_EVIDENCE],
        }
    )


def _of_class(failure_class: str, line: LogLine, scan: Scan) -> Verdict:
    """A verdict of that class about that line: place and action as rules would have them."""
    if failure_class == "Hang":
        return hang(scan, "nothing in the logs says why it stands", line)
    finding = _finding(failure_class, line, scan)
    return make_verdict(
        failure_class,
        method=METHOD,
        confidence=_MOST_CONFIDENT,
        root=line,
        rank=rank_of(finding, scan),
        node=node_of(finding, scan),
        action=finding.action,
        mitigation=finding.mitigation,
    )


def _finding(failure_class: str, line: LogLine, scan: Scan) -> Finding:
    """What rules know of the line, if it is of that class."""
    here = (line.file, line.number)
    for known in scan.findings:
        if known.failure_class == failure_class and (known.line.file, known.line.number) == here:
            return known
    return Finding(failure_class, "cause", METHOD, line, scan.order, rank=line.rank)
