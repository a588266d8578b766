"""Nodes of pods: as launchers and schedulers say, and as `kubectl describe` lists what happened to one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tasks.diagnose.headings import Headings, is_heading
from tasks.diagnose.host_names import NAMES, family_of, may_name_host, short_name
from tasks.diagnose.patterns import compile_pattern

_NAME = compile_pattern(
    r"^Name: +(?P<name>[\w.-]+)\s*$|\bdescribe (?:pods?|po)[ /](?P<asked>[\w.-]+)"
)
"""The listing's first line, or the command that is shown above a part of it."""
_NODE = compile_pattern(r"^Node: +(?P<node>[\w.-]+)(?:/[\d.:a-fA-F]+)?\s*$")
_OF_LISTING = compile_pattern(r"^(?:\s|[A-Z][\w -]{0,40}:)")
"""Its lines are indented, or begin with the name of a field."""
_PLACED = compile_pattern(
    r"(?i)\bpod[ /](?P<pod>[\w.-]+)(?: \w+)? (?:on|to|->|=>|@) (?:node[ /=:]+)?(?P<node>[\w.-]*\w)|"
    r"(?i)successfully assigned (?:[\w.-]+/)?(?P<assigned>[\w.-]+) to (?P<to>[\w.-]*\w)"
)
_FIELDS = compile_pattern(
    r"(?i)\b(?:pod(?:_?name)?|container|replica|hostname)[=:/ \"]+(?P<pod>[a-z][\w.-]*\d)\b.{0,60}?"
    r"\b(?:k8s_?|kube_?)?node(?:_?name)?[=:/ \"]+(?P<node>[a-z][\w.-]*\d[\w.-]*)|"
    r"\bnode(?:_?name)?[=:/ \"]+(?P<first>[a-z][\w.-]*\d[\w.-]*).{0,60}?"
    r"\b(?:pod(?:_?name)?|container|replica)[=:/ \"]+(?P<then>[a-z][\w.-]*\d)\b"
)
"""A pod and a node as fields of one line, in whatever order."""
_LABEL = compile_pattern(r"^\s*(?P<label>\[\d{1,5}\]|\(\d{1,5}\)) ")
"""What a collector of logs puts before each pod's lines."""
_COLUMNS = re.compile(r"\s\s+")
_TABLE = compile_pattern(r"^NAME .*\bNODE\b|\d+/\d+ +[A-Z][a-zA-Z]+ +\d+ .*\b\d+[smhd]\b.* <none>")
"""The head of a table of pods, and a row of it."""
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
    _column: int | None = None
    """Of the nodes, in the table of pods that is being read."""

    @property
    def node_of_listing(self) -> str | None:
        """Node of the pod, or of the kernel, whose lines are being read."""
        return self.described or self.headings.host

    def feed(self, text: str, file: str = "") -> None:
        """Take note of one line of a file, without a launcher's label."""
        if file != self._file:
            self._file, self._name, self.described = file, None, None
            self.headings.host = self._column = None
        self.headings.feed(text)
        if "pod" in text or "Pod" in text or "assigned" in text or "ode" in text:
            self._note_placed(text)
        if _is_head(text):
            self._column = _columns_of(text).index("NODE")
        elif self._column is not None:
            self._note_row(_columns_of(text), self._column)
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
            pod, node = match["pod"] or match["assigned"], match["node"] or match["to"]
        elif (match := _FIELDS.search(text)) is not None:
            pod, node = match["pod"] or match["then"], match["node"] or match["first"]
        else:
            return
        self._place(pod, node)
        if (label := _LABEL.match(text)) is not None:
            self._place(label["label"], node)

    def _note_row(self, row: list[str], column: int) -> None:
        """Of a table as `kubectl get pods -o wide` prints it."""
        if len(row) <= column:
            self._column = None
        elif may_name_host(row[column]):
            self._place(row[0], row[column])

    def node_of(self, name: str) -> str | None:
        """Node of a pod, by its name or that of its service: worker-3.jobs.svc.cluster.local."""
        return self.nodes.get(name) or self.nodes.get(short_name(name))

    def named_in(self, text: str) -> str | None:
        """Node of the only pod that the line names."""
        words = NAMES.findall(text) if self.nodes else []
        nodes = {self.nodes[word] for word in words if word in self.nodes}
        return nodes.pop() if len(nodes) == 1 else None

    def node_of_label(self, text: str) -> str | None:
        """Node of the pod whose number stands before the line."""
        match = _LABEL.match(text) if self.nodes else None
        return None if match is None else self.nodes.get(match["label"])

    def _place(self, pod: str, node: str) -> None:
        if len(self.nodes) < _MAX_PODS and any(c.isdigit() for c in node):
            self.nodes.setdefault(pod, node)


def _begins(text: str) -> bool:
    return text.startswith("Name:") or "describe po" in text


def _is_head(text: str) -> bool:
    return text.startswith("NAME ") and "NODE" in _columns_of(text)


def _columns_of(text: str) -> list[str]:
    return _COLUMNS.split(text.rstrip())


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
    return any(
        pattern.search(body) is not None for pattern in (_NAME, _NODE, _PLACED, _FIELDS, _TABLE)
    )
