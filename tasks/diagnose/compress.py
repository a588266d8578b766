"""Compresses logs: drops routine lines by rule, folds the rest by template, keeps what can be a cause.

Streams in bounded memory. A block of lines costs a few passes in C: their shapes are looked up in one
dictionary, and only a shape that is new is looked at as text (see templates.py).

What is kept as it is: the first lines of each template that speaks of a failure, with the lines
around them; every traceback that is not like one before; losses that jump; each source's last lines.
Of any other template the first line is kept, and how often, until where and by whom it came again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path

from tasks.diagnose.block_pieces import Pieces, positions
from tasks.diagnose.blocks import Block
from tasks.diagnose.cause_words import cause_words, is_strong
from tasks.diagnose.compressed import Compressed, Limits
from tasks.diagnose.filter_rules import FilterRules, shipped_rules
from tasks.diagnose.logs import LogLine, make_line, split_prefix
from tasks.diagnose.loss_watch import LossWatch
from tasks.diagnose.sources import Source, blocks_of, source_of
from tasks.diagnose.templates import Cache, Template, TemplateTable, mask, quick_mask, shapes
from tasks.diagnose.verbatim import Position, TracebackFolder, Verbatim, VerbatimStore

_BLOCK_BYTES = 1 << 20
_UNKNOWN = -1
_BLANK = 0
_MAX_LAST_BYTES = 1024
_MAX_PREFIX_BYTES = 128


def compress(
    sources: Iterable[Source | Path | str],
    rules: FilterRules | None = None,
    limits: Limits | None = None,
) -> Compressed:
    """Compress the logs of one job: files, `-`, or sources."""
    compressor = Compressor(rules, limits)
    for source in sources:
        where = source if isinstance(source, Source) else source_of(source)
        compressor.add(where, blocks_of(where, _BLOCK_BYTES))
    return compressor.result()


class Compressor:
    """Takes blocks of any number of sources, one source after the other."""

    def __init__(self, rules: FilterRules | None = None, limits: Limits | None = None) -> None:
        self._rules = shipped_rules() if rules is None else rules
        self._limits = limits or Limits()
        self._table = TemplateTable(self._limits.max_templates)
        self._table.append(Template("blank", ""))
        self._of_rule: dict[str, int] = {}
        self._by_shape = Cache(self._limits.max_cached_bytes)
        self._by_quick_mask = Cache(self._limits.max_cached_bytes)
        self._store = VerbatimStore(self._limits.max_lines, self._limits.max_bytes)
        self._tracebacks = TracebackFolder(self._store, self._limits.max_tracebacks)
        self._losses = LossWatch()
        self._sources: list[Source] = []
        self._lines = 0
        self._begin(Source(None, ""))

    def add(self, source: Source, blocks: Iterable[Block]) -> None:
        """Take all blocks of a source."""
        self.begin(source)
        for block in blocks:
            self.feed(block)
        self.end()

    def begin(self, source: Source) -> None:
        """The blocks that follow are this source's."""
        self._sources.append(source)
        self._begin(source)

    def feed(self, block: Block) -> None:
        """Take the next block of the source."""
        keys = shapes(block.data)
        ids = list(map(self._by_shape.get, keys, repeat(_UNKNOWN)))
        pieces = Pieces(block)
        if _UNKNOWN in ids:
            self._learn(keys, ids, pieces)
        counts = Counter(ids)
        last = dict(zip(ids, range(len(ids)), strict=True))
        self._keep_after(ids, pieces)
        for index, at in last.items():
            if index != _BLANK:
                self._note(index, counts[index], at, ids, pieces)
        heads = {index for index in last if self._table.templates[index].kind == "traceback"}
        if heads or self._tracebacks.inside:
            self._feed_tracebacks(heads, ids, pieces)
        for at, number, piece in pieces.tail(self._limits.tail_lines):
            self._before.append((self._base + at, number, piece))
        self._base += len(ids)
        self._end_number = block.numbers[-1]

    def end(self) -> None:
        """The source has ended, for now."""
        self._tracebacks.finish(self._source_index)
        kept = self._limits.tail_lines if self._source_index < self._limits.tails else 1
        for position, number, piece in list(self._before)[-kept:]:
            self._keep(position, number, piece, "end")
        self._lines += self._end_number
        self._end_number = 0

    def result(self) -> Compressed:
        """What is left of everything so far."""
        return Compressed(
            sources=tuple(self._sources),
            lines=self._lines + self._end_number,
            verbatim=self._store.lines(self._last_causes()),
            left_out=self._store.left_out,
            templates=[t for t in self._table.templates if t.count and t.kind != "blank"],
            tracebacks=list(self._tracebacks.groups.values()),
        )

    def _last_causes(self) -> Iterator[tuple[Position, Verbatim]]:
        """The last line of each template of causes: of a handled error that ends a run in the end."""
        for template in self._table.templates:
            if template.kind == "cause" and template.count > self._limits.verbatim_per_template:
                source = self._sources[template.last_position[0]]
                line = make_line(template.last_piece, template.last_number, source)
                if line is not None:
                    yield template.last_position, Verbatim(line, "cause")

    def _begin(self, source: Source) -> None:
        self._source = source
        self._source_index = len(self._sources) - 1
        self._base = 0
        self._end_number = 0
        self._after = 0
        self._before: deque[tuple[int, int, bytes]] = deque(maxlen=self._limits.tail_lines)
        self._losses.begin()

    # ------------------------------------------------------------ templates

    def _learn(self, keys: Sequence[bytes], ids: list[int], pieces: Pieces) -> None:
        """Give every piece of unknown shape its template."""
        at = -1
        while True:
            try:
                at = ids.index(_UNKNOWN, at + 1)
            except ValueError:
                return
            ids[at] = self._by_shape.get(keys[at], _UNKNOWN)
            if ids[at] == _UNKNOWN:
                ids[at] = self._template_of(keys[at], at, pieces)
                self._by_shape.remember(keys[at], ids[at])

    def _template_of(self, shape: bytes, at: int, pieces: Pieces) -> int:
        piece = pieces[at]
        quick = quick_mask(piece)
        index = self._by_quick_mask.get(quick)
        if index is None:
            masked = mask(piece)
            index = self._table.find(masked)
            if index is None:
                index = self._new_template(masked, self._make_line(at, pieces), shape)
            self._by_quick_mask.remember(quick, index)
        return index

    def _new_template(self, masked: bytes, line: LogLine | None, shape: bytes) -> int:
        if line is None:
            return _BLANK
        rule = self._rules.match(line.body)
        if rule is not None:
            if rule.id not in self._of_rule:
                watched = rule.kind == "metrics"
                template = Template("dropped", rule.id, line, 0, holds_loss=watched)
                template.rule_kind = rule.kind
                self._of_rule[rule.id] = self._table.append(template)
            return self._of_rule[rule.id]
        text = masked.decode("utf-8", errors="replace")
        names_rank = self._source.rank is None and split_prefix(line.text)[0] is not None
        watched = self._losses.reads(line.body)
        template = Template("folded", text, line, names_rank=names_rank, holds_loss=watched)
        if self._tracebacks.begins(line.body):
            template.kind = "traceback"
        elif is_strong(line.body):
            template.kind = "cause"
        words = " ".join(sorted(cause_words(line.body)))
        return self._table.add(masked, template, words)

    # ------------------------------------------------------------ what a block holds

    def _note(self, index: int, count: int, last: int, ids: list[int], pieces: Pieces) -> None:
        """Take note of a template's lines in a block."""
        template = self._table.templates[index]
        if template.kind != "dropped":
            self._note_ranks(template, index, count, ids, pieces)
            self._keep_first(template, index, count, ids, pieces)
        if template.holds_loss:
            for at in self._losses.jumps(index, count, last, ids, pieces):
                self._keep_around(at, ids, pieces, why="metric")
        template.count += count
        self._note_last(template, last, pieces)

    def _keep_first(
        self, template: Template, index: int, count: int, ids: list[int], pieces: Pieces
    ) -> None:
        """Keep the first lines of a template; of one that can be a cause, what is around too."""
        folded = template.kind == "folded"
        wanted = 1 if folded else self._limits.verbatim_per_template
        for at in positions(ids, index, min(count, max(0, wanted - template.count))):
            if folded:
                self._keep_at(at, pieces, "template")
            else:
                self._keep_around(at, ids, pieces)

    def _note_last(self, template: Template, last: int, pieces: Pieces) -> None:
        template.last_name = self._source.name
        template.last_number = pieces.numbers[last]
        template.last_position = (self._source_index, self._base + last)
        template.last_piece = pieces[last][:_MAX_LAST_BYTES]

    def _note_ranks(
        self, template: Template, index: int, count: int, ids: list[int], pieces: Pieces
    ) -> None:
        """Who writes the lines. Of a stream of many ranks a sample tells, a small one once all seem known."""
        if self._source.rank is not None:
            template.add_rank(self._source.rank)
        elif template.names_rank:
            known = template.ranks
            for at in positions(ids, index, min(count, template.rank_samples)):
                text = pieces[at][:_MAX_PREFIX_BYTES].decode("utf-8", errors="replace")
                template.add_rank(split_prefix(text)[0])
            most, least = self._limits.ranks_per_block, self._limits.ranks_per_block // 4
            template.rank_samples = most if template.ranks != known else least

    def _feed_tracebacks(self, heads: set[int], ids: list[int], pieces: Pieces) -> None:
        for at, index in enumerate(ids):
            if self._tracebacks.inside or index in heads:
                position = (self._source_index, self._base + at)
                line = None if index == _BLANK else self._make_line(at, pieces)
                self._tracebacks.feed(position, pieces[at], line)

    # ------------------------------------------------------------ kept lines

    def _keep_at(self, at: int, pieces: Pieces, why: str) -> None:
        self._keep(self._base + at, pieces.numbers[at], pieces[at], why)

    def _keep(self, position: int, number: int, piece: bytes, why: str) -> None:
        line = make_line(piece, number, self._source)
        if line is not None:
            self._store.keep((self._source_index, position), line, why)

    def _keep_around(self, at: int, ids: list[int], pieces: Pieces, why: str = "cause") -> None:
        """Keep a line and what stands around it, in the blocks before and after too."""
        before, after = self._limits.context_before, self._limits.context_after
        self._keep_at(at, pieces, why)
        if at < before:
            for position, number, piece in list(self._before)[at - before :]:
                self._keep(position, number, piece, "context")
        for other in range(max(0, at - before), min(len(pieces), at + after + 1)):
            if abs(other - at) <= 1 or not self._is_measurement(ids[other]):
                self._keep_at(other, pieces, "context")
        self._after = max(self._after, at + after + 1 - len(pieces))

    def _keep_after(self, ids: list[int], pieces: Pieces) -> None:
        """Keep what stands after a line at the end of the block before."""
        for at in range(min(self._after, len(pieces))):
            if not self._is_measurement(ids[at]):
                self._keep_at(at, pieces, "context")
        self._after = max(0, self._after - len(pieces))

    def _is_measurement(self, index: int) -> bool:
        """Whether a line explains nothing that stands further away than beside it."""
        return self._table.templates[index].rule_kind in ("metrics", "progress", "nccl")

    def _make_line(self, at: int, pieces: Pieces) -> LogLine | None:
        return make_line(pieces[at], pieces.numbers[at], self._source)
