"""Words that a line about a failure may hold. Such a line is dropped by no rule that does not name
the word, and when the word is a strong one the lines around it are kept as they are.

The list errs on the side of keeping: a routine line with such a word is folded, not lost.
"""

from __future__ import annotations

from functools import lru_cache

from tasks.diagnose.patterns import Pattern, compile_pattern

_STRONG = (
    r"\b[a-z_.]+(?:error|exception)\b|\berr(?:ors?|no)?\b|error|exception\b|traceback|fatal|critical|\bpanic|abort(?:ed|ing)?",
    r"seg(?:mentation )?fault|core dump|\bkill(?:ed|ing)?|\boom\b|oom[-_]kill|out[ _-]of[ _-](?:\w+ )?memory",
    r"\bsignal \d|signal (?:received|handler|name)|(?:death|closing|caught|received) signal",
    r"\bsig(?:kill|term|segv|abrt|bus|int|fpe|ill|hup|quit|usr\d|pipe|xcpu)\b",
    r"(?:operation|watchdog|connect(?:ion)?|read|socket|heartbeat|request|collective) time[ -]?out",
    r"time[ -]?out at |timed[ _-]out|time[ -]?out(?: after|[:=]? exceeded|ed|\b[^=:_\w]*$)|time limit|deadline exceeded",
    r"\bfail(?:ed|ure|ures|s|ing)?\b|failed|failure|\bfault",
    r"cannot|can't|can not|could ?n[o']t|couldn't|unable to|not respon",
    r"\b(?:died|dead|lost|crash(?:ed|es|ing)?|hung|hanging|stuck|stalled|deadlock)\b",
    r"\bs?xid\b|nvrm|\becc\b|uncorrect|fell off|fallen off|bus error|row remap",
    r"no space left|quota|broken pipe|reset by peer|connection (?:was |is )?(?:closed|lost)",
    r"closed (?:by|the connection|unexpectedly)|refused|unreachable|no route to host",
    r"no such|not found|does(?: no|n')t exist|did(?: no|n')t|permission denied|access denied",
    r"no module named|undefined symbol|corrupt|illegal|mismatch|cancel|preempt|terminat",
    r"exit(?:ed|ing)?[ _](?:with )?(?:exit )?(?:code|status)|exit_?code|non-zero",
    r"unexpected|unhandled|unsupported|unrecogni[sz]ed|incompatible|nccl warn",
    r"[:=] *[-+]?(?:nan|inf|infinity)\b|\bis (?:nan|inf)\b|\b(?:loss|norm|ppl|perplexity) +[-+]?(?:nan|inf)\b|diverg|overflow|\bassert",
    r"^usage: |node_fail|unhealthy|due to |keyboardinterrupt|not ready|link (?:is )?down",
    r"blocked for more than|no \w+ has reported",
)
_WEAK = (
    r"time[ _-]?out|signal|invalid|missing|denied|disconnect|\bbad\b|wrong|reject|conflict|expired",
    r"exceed|throttl|evict|interrupt|violat|unauthorized|forbidden|degraded|not enough|too (?:many|large)",
    r"\bdown\b|\bdrain|\bhang|retr(?:y|ie)|nvlink|warn\b|unavailable|insufficient|unknown",
    r"not (?:a |an )?(?:valid|allowed|permitted|available|registered|defined|implemented|supported)",
    r"\bexit|\bstop(?:ped|ping)?\b|slow|straggl|skipp|restart",
)


@lru_cache(maxsize=1)
def _strong() -> Pattern:
    return compile_pattern(f"(?i){'|'.join(_STRONG)}")


@lru_cache(maxsize=1)
def _any() -> Pattern:
    return compile_pattern(f"(?i){'|'.join((*_STRONG, *_WEAK))}")


def is_strong(text: str) -> bool:
    """Whether the text speaks of a failure so clearly that the lines around it matter."""
    return _strong().search(text) is not None


def cause_words(text: str) -> set[str]:
    """Every cause word of the text, strong or weak, in lower case and without its margins."""
    return {word.strip(" :=+-").lower() for word in _any().findall(text)}
