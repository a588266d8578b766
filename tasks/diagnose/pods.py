"""Nodes of pods: as launchers and schedulers say, and as `kubectl describe` lists what happened to one."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.diagnose.headings import Headings, is_heading
from tasks.diagnose.host_names import family_of, may_name_host
from tasks.diagnose.patterns import compile_pattern

_NAME = compile_pattern(
    r"^Name: +(?P<name>[\w.-]+)\s*$|\bdescribe (?:pods?|po)[ /](?P<asked>[\w.-]+)"
)
"""The listing's first line, or the command that is shown above a part of it."""
_NODE = compile_pattern(r"^Node: +(?P<node>[\w.-]+)(?:/[\d.:a-fA-F]+)?\s*$")
_OF_LISTING = compile_pattern(r"^(?:\s|[A-Z][\w -]{0,40}:)")
"""Its lines are indented, or begin with the name of a field."""
_PLACED = compile_pattern(
    r"(?i)\bpod[ /](?P<pod>[\w.-]+)(?: \w+)? (?:on|to|->|@) (?:node )?(?P<node>[\w.-]*\w)|"
    r"(?i)successfully assigned (?:[\w.-]+/)?(?P<assigned>[\w.-]+) to (?P<to>[\w.-]*\w)"
)
_PAIR = compile_pattern(
    r"(?:^|[\s,;(\[])(?P<pod>[a-z][\w.-]*\d) ?(?:on|->|=>|@) ?(?:node )?(?P<node>[a-z][\w.-]*\d)\b"
)
_JOINS = (" on ", "->", "=>", "@")
_MIN_COMMON_CHARS = 3
_MAX_PAIRS = 256
_MAX_PODS = 20_000


@dataclass
class Pods:
    """Feed it lines; it knows the node of each pod that they place."""

    nodes: dict[str, str] = field(default_factory=dict)
    """By pod."""
    described: str | None = None
    """Node of the pod that the lines being read describe."""
    headings: Headings = field(default_factory=Headings)
    _name: str | None = None
    _file: str = ""

    @property
    def node_of_listing(self) -> str | None:
        """Node of the pod, or of the kernel, whose lines are being read."""
        return self.described or self.headings.host

    def feed(self, text: str, file: str = "") -> None:
        """Take note of one line of a file, without a launcher's label."""
        if file != self._file:
            self._file, self._name, self.described = file, None, None
            self.headings.host = None
        self.headings.feed(text)
        if "pod" in text or "Pod" in text or "assigned" in text:
            self._note_placed(text)
        if any(word in text for word in _JOINS):
            for pod, node in _pairs_in(text):
                self._place(pod, node)
        if self._name is None:
            self._begin(text)
        elif _OF_LISTING.match(text) is None or _begins(text):
            self.described = None
            self._begin(text)
        elif (match := _NODE.match(text)) is not None:
            self.described = match["node"]
            self._place(self._name, match["node"])

    def _begin(self, text: str) -> None:
        match = _NAME.search(text) if _begins(text) else None
        self._name = (match["name"] or match["asked"]) if match is not None else None

    def _note_placed(self, text: str) -> None:
        if (match := _PLACED.search(text)) is not None:
            self._place(match["pod"] or match["assigned"], match["node"] or match["to"])

    def _place(self, pod: str, node: str) -> None:
        if len(self.nodes) < _MAX_PODS and any(c.isdigit() for c in node):
            self.nodes.setdefault(pod, node)


def _begins(text: str) -> bool:
    return text.startswith("Name:") or "describe po" in text


def _pairs_in(text: str) -> list[tuple[str, str]]:
    """Of a row of pods and their nodes: pods of one job begin alike, and nodes are of one family."""
    found: list[tuple[str, str]] = []
    while len(found) < _MAX_PAIRS and (match := _PAIR.search(text)) is not None:
        found.append((match["pod"], match["node"]))
        text = text[match.end() :]
    if len({pod for pod, _ in found}) < 2 or len({family_of(node) for _, node in found}) > 1:
        return []
    families = {family_of(pod) for pod, _ in found}
    alike = len(families) == 1 or len({pod[:_MIN_COMMON_CHARS] for pod, _ in found}) == 1
    other = family_of(found[0][1]) not in families
    return found if alike and other and all(may_name_host(node) for _, node in found) else []


def may_place_pod(body: str) -> bool:
    """Whether the line may say where a pod is."""
    if is_heading(body) or (any(word in body for word in _JOINS) and _pairs_in(body)):
        return True
    return any(pattern.search(body) is not None for pattern in (_NAME, _NODE, _PLACED))
