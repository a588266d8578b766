"""What programs say about errors that they have dealt with: such an error ended nothing."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.diagnose.exceptions import CHAIN_JOINTS
from tasks.diagnose.findings import Finding
from tasks.diagnose.logs import LogLine
from tasks.diagnose.patterns import compile_pattern

_WORDS = (
    r"(?:\b(?:skipp(?:ed|ing)|ignor(?:ed|ing)|caught|retrying|retry \d+|re-?trying in|falling back|fall back|"
    r"restarted|rebuilding|not (?:needed|required)|warn(?:ing)?[ _]and[ _]continu\w+|cache miss|using (?:the |a |an )?(?:\w+ )?(?:cached|stale) (?:version|copy|file|data\w*)|will (?:re)?try|retry loop|no action needed|non-critical|"
    r"thrown while requesting|does not fit, trying|continuing|recovered|attempt \d+ ?(?:/|of) ?\d+ failed, re|"
    r"retry in|probing with|(?:counted|scored|treated) as (?:a )?(?:failed|wrong|incorrect|miss\w*|0)|scored 0)\b|\w disabled\)|\(expected\)|\(non-?fatal\)\s*$|非致命|"
    r"(?:->|=>|→|;) ?(?:now )?(?:using|writing|reading|saving|loading|trying|falling)\b)"
)
_LEVEL = r"^(?:[^\s:]*[\s:]+){0,5}\[?(?:WARN(?:ING)?|INFO|DEBUG)\b"
_GLOG_LEVEL = (
    r"\b[WI](?:\d{3,4} \d\d:\d\d:[\d.]+(?: +\d+)?)? [\w/.-]{1,160}\.(?:cc|cpp|cu|h|py):\d+\]"
)
"""As TensorFlow and torch write it: a letter before the place in the source."""
_RECORDS_LEVEL = r"\"(?:level|levelname|severity|lvl|lv|sev|log[._]?level|l)\": ?(?:\"(?:WARN(?:ING)?|NOTICE|INFO|DEBUG|TRACE|[WID])\"|[1-4]0\b)"
_HANDLED = compile_pattern(rf"(?i){_LEVEL}|{_GLOG_LEVEL}|{_RECORDS_LEVEL}|{_WORDS}")
_WITHOUT = compile_pattern(
    r"(?i)\((?:\w+ )?optional\b[^:=?]{0,80}\)\W*$|\(non-?(?:fatal|critical)\)\W*$|\bfeature off\b|"
    r"[(;,:] ?(?:\w+ ){0,2}(?:ignoring|skipping|disabling|falling back|continuing|using \S{1,40} instead)\b[^:=?]{0,60}$|"
    r"\bfalling back to (?:[\w.-]+ ?){1,6}\W*$"
)
_BEFORE = compile_pattern(rf"(?i){_WORDS}|optional")
_ANNOUNCES = compile_pattern(r"(?i):\s*$|\braised\b|\bexception\b|traceback")
_IGNORED = compile_pattern(
    r"^(?:Exception ignored in|Error in (?:atexit|sitecustomize|usercustomize)|Error processing line \d+ of \S+\.pth)"
)
_HELPER_THREAD = compile_pattern(
    r"^Exception in thread (?:Queue(?:Feeder|Manager)Thread|ExecutorManagerThread|.*(?:_pin_memory_loop|_monitor|tqdm|"
    r"wandb|MsgRouterThr|NetStatThr|ChkStopThr|IntMsgThr))"
)
_AFTER = compile_pattern(
    rf"(?i){_WORDS}|\b(?:unavailable|missing|not (?:available|found|installed))[,;:] ?(?:using|falling|will)\b|\busing \S.{{0,60}} instead|"
    r"\b(?:does not|did not) fit, trying|\bdisabl(?:ed|ing)\b"
)
_ADVICE = compile_pattern(
    r"(?i)\byou (?:can|could|may|might|should|must)\b|\bto (?:suppress|silence|avoid|disable|fix) (?:this|it|the)\b|\bplease\b|\bconsider\b"
)
"""What an error's own message says that somebody else may do about it."""
_ENDS = compile_pattern(
    r"(?i)\b(?:shut(?:ting)? ?down|exiting|aborting|terminating|stopping|giving up|(?:not|no|no more) retr\w+)\b|^wandb: "
)
_PASSING = compile_pattern(
    r"\((?:retrying|ignored|non-critical|resum(?:ing|ed))\)|, retrying\b|no action needed|"
    r"(?i:\b(?:previous|prior|last|earlier|old|former) (?:attempt|job|run|submission|start|launch|link|allocation)\b|"
    r"\b(?:yesterday|last (?:week|night|time)):)"
)
_COUNTED = r"(?:errors?|events?|failures?|faults?|kill(?:s|ed)?|remap\w*|resets?|required|pending|heartbeats?)"
_SAMPLED = compile_pattern(
    r"(?i)^.{0,80}\b(?:sample|generation|completion|generated(?: text)?|prompt|prediction|response)s?(?: ?#?\d{1,6})? ?[:=] ?[\"'`]"
)
_NOTHING_WRONG = compile_pattern(
    rf"(?i)\b\w*{_COUNTED}\s*(?:[=:]|is|are)\s*(?:0|no|none|false|n/?a)(?:[^\w.]|$)|"
    rf"(?:^|[^.\w])(?:0|no) (?:\w+ ){{0,2}}(?:{_COUNTED}|inactive|failed|down|links?|needs?|requires?)\b|"
    r"\b(?:watch|look|scann?|check|monitor|filter)(?:s|ing|ed)? (?:the \w+ )?for\b"
)
_SOMETHING_WRONG = compile_pattern(
    rf"(?i)(?:{_COUNTED}|uncorr\w*|volatile|aggregate|total|double\w*)\s*[=:]\s*(?:[1-9]|yes|true)|\bNVRM: |\bkernel: |"
    r"\b(?:job|step|task)[ _]?id[=:] ?0 \w+ failed\b"
)
_ERROR_LEVEL = compile_pattern(r"\b(?:ERROR|FATAL|CRITICAL)\b")
_EVENT = compile_pattern(r"\bWarning\s+[A-Z]\w+\s+\w+/\S")
"""Of Kubernetes, which calls any event a warning that is not as usual."""
_SETTING = compile_pattern(
    r"^\s+\"(?P<key>[\w.-]{1,60})\": \".*\",? *$|^\s+(?P<name>\w{1,60}) \.{5,} "
)
_KEY_OF_ERRORS = compile_pattern(
    r"(?i)err|fail|exc|msg|message|reason|detail|trace|log|std|output|text|event|stat|line|cause|body|payload|content|summary|type"
)
_WATCHDOG = "ProcessGroupNCCL"
"""It tells of other ranks that it has "caught" their time-outs."""
_OBJECT = compile_pattern(r"(?P<name>[a-z][a-z0-9]{1,9}://[\w./%+-]{4,400}\w)")
_LEFT_OUT = compile_pattern(r"(?i)\b(?:skip|ignor|continu|discard|dropp)\w*")
_LINES_LOOKED_AT = 2


def says_handled(body: str) -> bool:
    """Whether a line says of its own error that it was dealt with, or only speaks of one. NCCL's warnings do not."""
    if "NCCL WARN" in body or ("Warning" in body and _EVENT.search(body) is not None):
        return False
    return _HANDLED.search(body) is not None or _is_setting(body)


def is_sampled(body: str) -> bool:
    """Whether a line quotes what a language model has written, which may be any text it was trained on."""
    return _SAMPLED.search(body) is not None


def says_dealt_with(finding: Finding) -> bool:
    """Whether a finding's own line says that it was dealt with. Who notices that nothing goes on may well only warn."""
    noticed = finding.role != "cause" or finding.failure_class == "Hang"
    return (says_passing if noticed else says_handled)(finding.line.body)


def sets_itself_aside(message: str) -> bool:
    """Whether an exception's own words say that its program goes on without what it misses."""
    return _WITHOUT.search(message) is not None


def _is_setting(body: str) -> bool:
    """Whether a line is one setting of a configuration that is printed, whatever its value speaks of."""
    match = _SETTING.search(body)
    return match is not None and _KEY_OF_ERRORS.search(match["key"] or match["name"]) is None


def says_nothing_wrong(body: str) -> bool:
    """Whether a line that has the words of a fault says that there is none: a count of 0, what is watched for."""
    return _NOTHING_WRONG.search(body) is not None and _SOMETHING_WRONG.search(body) is None


def _announces_handled(body: str) -> bool:
    """Whether the line before a traceback introduces it as one that does not matter."""
    if _IGNORED.search(body):
        return True
    said = _BEFORE.search(body) is not None and _ANNOUNCES.search(body) is not None
    return said and _ERROR_LEVEL.search(body) is None


def says_passing(body: str) -> bool:
    """Whether a line about another process says that it is tried again, or left out."""
    return _PASSING.search(body) is not None


@dataclass
class HandledErrors:
    """Follows one stream: what stands before and after its tracebacks."""

    said_before: bool = False
    """Of the traceback that is being read: the line before it says that it does not matter."""
    last: Finding | None = None
    """The newest error that may still be said to be dealt with."""
    _object: tuple[str, int] | None = None
    """What the newest error that was dealt with is about, and the line."""
    _before: LogLine | None = None
    _outside: bool = True
    _looked_at: int = 0

    @property
    def ignored(self) -> bool:
        """Whether the line before says that the interpreter ignores what comes."""
        return self._before is not None and _IGNORED.search(self._before.body) is not None

    @property
    def in_helper_thread(self) -> bool:
        """Whether the line before the traceback says that a library's own thread has raised it."""
        return self._before is not None and _HELPER_THREAD.search(self._before.body) is not None

    def note(self, line: LogLine) -> None:
        """The line says of its own error that it was dealt with; of what is tried again, the next may be the last."""
        match = _OBJECT.search(line.body) if _LEFT_OUT.search(line.body) else None
        self._object = None if match is None else (match["name"], line.number)

    def is_about_the_same(self, line: LogLine) -> bool:
        """Whether the line, right after one that says that its error was dealt with, is about the same object."""
        if self._object is None or line.number - self._object[1] > _LINES_LOOKED_AT:
            return False
        return self._object[0] in line.body

    def inside(self, line: LogLine) -> None:
        """A line of a traceback."""
        if self._outside:
            self._outside = False
            before = self._before
            self.said_before = before is not None and _announces_handled(before.body)
            self.last, self._looked_at = None, 0

    def recovered(self, line: LogLine) -> bool:
        """Whether this line, soon after a traceback, says that the program goes on without."""
        if self.last is None or self._looked_at >= _LINES_LOOKED_AT:
            return False
        self._looked_at += 1
        if _IGNORED.search(line.body) or _ENDS.search(line.body) or _WATCHDOG in line.body:
            return False  # the end of the program, which comes of the error
        if _ADVICE.search(line.body) is not None:
            return False
        return _ERROR_LEVEL.search(line.body) is None and _AFTER.search(line.body) is not None

    def outside(self, line: LogLine) -> None:
        """An ordinary line, or one that joins two tracebacks of a chain."""
        self._outside = not line.body.startswith(CHAIN_JOINTS)
        self._before = line

    def ended(self) -> None:
        """A traceback's last line: the next one is another's, unless a line joins them."""
        self._outside, self._before = True, None
