"""Compression: routine goes, causes stay with what is around them, the rest is folded with its ranks."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from tasks.diagnose.bench_log import recorded_lines, write_log
from tasks.diagnose.cases import packaged_cases
from tasks.diagnose.compress import Compressor, compress
from tasks.diagnose.compressed import Compressed, Limits
from tasks.diagnose.filter_rules import FilterRules
from tasks.diagnose.sources import Source, Tail, source_of

KINDS = recorded_lines()
CAUSES = KINDS["causes"]
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "/opt/run/train.py", line 12, in main',
    "    batch = next(stream)",
    '  File "/opt/run/stream.py", line 131, in __next__',
    "    record = parse(raw)",
    "MyError: shard 17 ended early",
]
STEP = "2025-05-28 08:10:00,123 INFO t: step {}/900000 loss {} grad_norm 0.78"


def _steps(count: int, loss: float = 2.4) -> list[str]:
    return [STEP.format(i, f"{loss + i % 7 / 100:.4f}") for i in range(count)]


def _compress(tmp_path: Path, lines: list[str], **limits: int) -> Compressed:
    path = tmp_path / "job.log"
    path.write_text("\n".join(lines) + "\n", newline="")
    return compress([path], limits=Limits(**limits))


def _kept(compressed: Compressed) -> dict[int, str]:
    return {line.number: line.text for line in compressed.kept}


def test_routine_is_dropped_and_counted(tmp_path: Path) -> None:
    compressed = _compress(tmp_path, _steps(5000))
    assert compressed.lines == 5000
    assert compressed.kept_lines == Limits().tail_lines
    assert compressed.dropped() == {"key_value_step": 5000}
    assert compressed.templates[-1].last_number == 5000


@pytest.mark.parametrize("seed", range(12))
def test_every_cause_survives_at_any_place(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "job.log"
    causes = write_log(path, 400_000, seed=seed)
    kept = _kept(compress([path]))
    lost = {number: text for number, text in causes.items() if kept.get(number) != text.rstrip()}
    assert len(causes) == len(CAUSES)
    assert not lost


def test_root_causes_of_past_failures_survive(tmp_path: Path) -> None:
    roots = [case.root for case in packaged_cases() if case.root and "loss: 7.44" not in case.root]
    routine = [line for kind in ("overland_steps", "deepspeed", "chatter") for line in KINDS[kind]]
    rng = random.Random(11)
    lines = [rng.choice(routine) for _ in range(20_000)]
    places = dict(zip(rng.sample(range(len(lines)), len(roots)), roots, strict=True))
    for place, root in places.items():
        lines[place] = root
    kept = _kept(_compress(tmp_path, lines))
    assert [root for place, root in places.items() if place + 1 not in kept] == []


@pytest.mark.parametrize("prefix", ["", "[rank{}]: ", "{}: ", "[default{}]:", "(RANK {}) "])
def test_causes_survive_in_streams_of_many_ranks(tmp_path: Path, prefix: str) -> None:
    rng = random.Random(3)
    routine = [line for kind in ("overland_steps", "nccl", "chatter") for line in KINDS[kind]]
    lines = [prefix.format(rng.randrange(64)) + rng.choice(routine) for _ in range(20_000)]
    places = dict(zip(rng.sample(range(len(lines)), len(CAUSES)), CAUSES, strict=True))
    for place, cause in places.items():
        lines[place] = prefix.format(place % 64) + cause
    compressed = _compress(tmp_path, lines)
    kept = _kept(compressed)
    assert [cause for place, cause in places.items() if place + 1 not in kept] == []
    assert compressed.ratio > 20


def test_a_cause_survives_behind_a_bar_a_colour_and_broken_bytes(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    bar = b"\r 12%|\xe2\x96\x88\xe2\x96\x8f        | 12/100 [00:01<00:10,  8.31it/s]"
    lines = [
        bar * 50 + b"\rRuntimeError: behind the bar",
        b"\x1b[31;1mValueError\x1b[0m: red",
        b"\xff\xfe\x00KeyError: 'broken\xff'",
        b"iteration 12/ 100 | consumed samples: 12 | lm loss: 2.1 | OSError: [Errno 5] Input/output error",
    ]
    path.write_bytes(gzip.compress(b"\n".join([*lines, bar * 50, *lines, bar])))
    numbers = [(line.number, line.text[-20:]) for line in compress([path]).kept]
    for start in (0, 5):
        for offset, end in enumerate(("behind the bar", "ValueError: red", "'", "output error")):
            assert any(n == start + offset + 1 and t.endswith(end) for n, t in numbers), (
                start,
                end,
            )


def test_what_stands_around_a_cause_is_kept_across_blocks(tmp_path: Path) -> None:
    limits = Limits()
    for size in (10, 2_000_000):
        filler = [f"note {chr(97 + i % 26) * 3} of the loader" for i in range(size // 20)]
        compressed = _compress(tmp_path, [*filler, "RuntimeError: boom", *filler])
        at = len(filler) + 1
        around = set(range(max(1, at - limits.context_before), at + limits.context_after + 1))
        assert around & set(range(1, compressed.lines + 1)) <= set(_kept(compressed))


def test_context_reaches_over_the_border_of_a_block() -> None:
    from tasks.diagnose.blocks import LineSplitter

    splitter, compressor = LineSplitter(), Compressor()
    compressor.begin(Source(None, "x"))
    lines = [f"word{chr(97 + i)} here\n" * 3 for i in range(26)]
    for part in ("".join(lines), "RuntimeError: boom\n", "".join(reversed(lines))):
        block = splitter.push(part.encode())
        assert block is not None
        compressor.feed(block)
    compressor.end()
    kept = {line.number for line in compressor.result().kept}
    assert set(range(76, 85)) <= kept


def test_tracebacks_are_whole_and_the_same_one_is_counted(tmp_path: Path) -> None:
    lines = _steps(50)
    for rank in range(40):
        ended = [*TRACEBACK[:-1], f"MyError: shard {rank} ended early"]
        lines += [f"[rank{rank}]: {line}" for line in ended]
    other = [*TRACEBACK[:-1], "OtherError: of the same place"]
    lines += [f"[rank7]: {line}" for line in other]
    compressed = _compress(tmp_path, lines, verbatim_per_template=2)
    kept = _kept(compressed)
    assert [kept.get(51 + i) for i in range(6)] == lines[50:56]
    assert [kept.get(291 + i) for i in range(6)] == lines[290:296]
    assert sorted(group.count for group in compressed.tracebacks) == [1, 40]
    assert max(group.ranks for group in compressed.tracebacks) == (1 << 40) - 1
    assert compressed.kept_lines < 60


def test_tracebacks_of_ranks_that_write_at_once_come_apart(tmp_path: Path) -> None:
    streams = [[f"[rank{rank}]: {line}" for line in TRACEBACK] for rank in range(8)]
    rng = random.Random(5)
    lines = _steps(20)
    while any(streams):
        stream = rng.choice([s for s in streams if s])
        lines.append(stream.pop(0))
    compressed = _compress(tmp_path, lines)
    (group,) = compressed.tracebacks
    assert group.count == 8
    assert group.ranks == 0xFF


def test_templates_know_count_ends_and_ranks(tmp_path: Path) -> None:
    lines = [f"[rank{i % 5 + 2}]: shard {i * 977} opened at {i:#x}" for i in range(300)]
    (template,) = _compress(tmp_path, lines).folded
    assert template.first is not None
    assert (template.count, template.first.number, template.last_number) == (300, 1, 300)
    assert template.ranks == 0b1111100


def test_of_an_error_that_comes_often_the_first_and_the_last_line_stay(tmp_path: Path) -> None:
    lines = [f"WARNING upload of part {i} failed" for i in range(3000)]
    (template,) = (compressed := _compress(tmp_path, [*lines, *_steps(100)])).folded
    kept = _kept(compressed)
    assert (template.count, template.last_number) == (3000, 3000)
    assert {1, 3000} <= set(kept)
    assert kept[3000] == lines[-1]
    assert compressed.kept_lines < 30


def test_files_of_ranks_share_templates(tmp_path: Path) -> None:
    for rank in range(6):
        (tmp_path / f"rank_{rank}.log").write_text(f"opened port {rank}000\n" * 100)
    files = sorted(tmp_path.glob("*.log"))
    compressed = compress(files)
    (template,) = compressed.folded
    assert template.ranks == 0b111111
    assert (compressed.lines, template.count) == (600, 600)
    assert {line.rank for line in compressed.kept} == set(range(6))


@pytest.mark.parametrize("known", [True, False])
def test_a_jump_of_the_loss_is_kept_where_it_begins(tmp_path: Path, known: bool) -> None:
    high = [STEP.format(i, "9.8765") for i in range(30_000, 60_000)]
    lines = [*_steps(30_000), *high]
    if not known:
        lines = [line.replace("INFO t: step", "round") for line in lines]
    compressed = _compress(tmp_path, lines)
    reasons = {v.line.number: v.why for _, v in compressed.verbatim}
    assert reasons.get(30_001) == "metric"
    assert compressed.ratio > 500


def test_a_loss_that_is_no_number_is_a_cause(tmp_path: Path) -> None:
    lines = [*_steps(1000), STEP.format(1000, "nan"), *_steps(1000)]
    assert 1001 in _kept(_compress(tmp_path, lines))


def test_a_growing_file_is_compressed_as_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.log"
    tail, compressor = Tail(source_of(path)), Compressor()
    compressor.begin(tail.source)
    for part in ("\n".join(_steps(500)), "\nRuntimeErr", "or: boom\n", "\n".join(_steps(500))):
        with open(path, "a") as file:
            file.write(part)
        for block in tail.read():
            compressor.feed(block)
    seen = compressor.result()
    assert [line.number for line in seen.kept if "boom" in line.text] == [501]
    rest = tail.finish()
    assert rest is not None
    compressor.feed(rest)
    compressor.end()
    assert compressor.result().lines == 1001


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n\r\n", b"one"])
def test_nothing_is_no_trouble(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(content)
    compressed = compress([path])
    assert compressed.lines == content.count(b"\n") + (
        not content.endswith(b"\n") and bool(content)
    )
    assert [line.text for line in compressed.kept] == [t for t in ["one"] if content == b"one"]


def test_without_rules_lines_are_folded_only(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("\n".join(_steps(1000)))
    compressed = compress([path], rules=FilterRules([]))
    assert not compressed.dropped()
    assert [template.count for template in compressed.folded] == [1000]
