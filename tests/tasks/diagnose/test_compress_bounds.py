"""Compression in bounded memory, whatever a log holds, and as text within a budget."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from tasks.diagnose.bench_log import sample_lines, write_log
from tasks.diagnose.compress import Compressor, compress
from tasks.diagnose.compressed import Compressed, Limits
from tasks.diagnose.filter_rules import shipped_rules
from tasks.diagnose.rendering import render
from tasks.diagnose.sources import blocks_of, source_of
from tasks.diagnose.templates import Template, TemplateTable, rank_ranges

WORDS = [a + b + c for a in "bdfgklm" for b in "aeiou" for c in ("nk", "rt", "st", "mp", "lf")]


def _flood(path: Path, form: str, count: int) -> None:
    rng = random.Random(7)
    with open(path, "w") as file:
        for _ in range(count):
            file.write(form.format(*rng.choices(WORDS, k=6)) + " 1234567" * 4 + "\n")


def _measured(path: Path, limits: Limits) -> tuple[Compressed, int]:
    shipped_rules()
    tracemalloc.start()
    source, compressor = source_of(path), Compressor(limits=limits)
    compressor.add(source, blocks_of(source, 1 << 16))
    compressed = compressor.result()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return compressed, peak_bytes


FORMS = [
    "{} {} {} {} {} {}",
    "error: {} {} {} {} {} {}",
    "Traceback (most recent call last): {} {} {}",
]


@pytest.mark.parametrize("form", FORMS)
def test_lines_that_all_differ_take_bounded_memory(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.log"
    limits = Limits(max_templates=200, max_lines=500, max_tracebacks=20, max_cached_bytes=300_000)
    _flood(path, form, 5_000)
    few, few_bytes = _measured(path, limits)
    _flood(path, form, 9_000)
    many, many_bytes = _measured(path, limits)
    assert len(many.templates) <= 2 * (200 + 50 + 50 + 1)
    assert many.kept_lines <= 550 + 2 * (200 + 50 + 50 + 1)
    assert many.lines == 9_000
    assert sum(template.count for template in many.templates) == 9_000
    assert many_bytes < few_bytes + (1 << 20)
    assert few.kept_lines


def test_a_flood_of_other_lines_takes_no_room_of_causes(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    _flood(path, "{} {} {} {} {} {}", 20_000)
    with open(path, "a") as file:
        file.write("RuntimeError: CUDA error: an illegal memory access was encountered\n")
        file.write("\n".join(WORDS * 30))
    compressed = compress([path], limits=Limits(max_templates=100))
    assert 20_001 in {line.number for line in compressed.kept}


def test_a_flood_of_errors_hides_no_error_that_begins_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    _flood(path, "error: cannot parse {} {} {} {} {} {}", 20_000)
    with open(path, "a") as file:
        file.write("NVRM: Xid (PCI:0000:4a:00): 79, GPU has fallen off the bus.\n")
    _flood(tmp_path / "b.log", "error: cannot parse {} {} {} {} {} {}", 20_000)
    with open(path, "ab") as file:
        file.write((tmp_path / "b.log").read_bytes())
    compressed = compress([path], limits=Limits(max_templates=100, max_lines=3000))
    assert 20_001 in {line.number for line in compressed.kept}
    assert compressed.kept_lines < 3000


def test_long_lines_that_all_differ_take_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    peaks = []
    for count in (400, 800):
        _flood(path, "{} {} {} {} {} {}" + " some words" * 400, count)
        compressed, peak_bytes = _measured(
            path, Limits(max_templates=100, max_bytes=1 << 20, max_cached_bytes=300_000)
        )
        assert compressed.lines == count
        peaks.append(peak_bytes)
    assert peaks[1] < peaks[0] + (4 << 20)


@pytest.mark.parametrize("size", [1 << 20, 2 << 20])
def test_binary_data_takes_bounded_memory(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(random.Random(2).randbytes(size))
    compressed, peak_bytes = _measured(path, Limits(max_templates=100, max_lines=500))
    assert compressed.kept_lines <= 550 + 2 * (100 + 25 + 25 + 1)
    assert peak_bytes < 64 << 20


def test_a_line_of_ten_megabytes_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\nbegin " + b"x" * (10 << 20) + b" RuntimeError: boom\nlast\n")
    compressed, peak_bytes = _measured(path, Limits())
    texts = {line.number: line.text for line in compressed.kept}
    assert texts[2].startswith("begin ")
    assert texts[2].endswith("RuntimeError: boom")
    assert peak_bytes < 16 << 20


def test_many_ranks_are_written_short() -> None:
    assert rank_ranges(0) == ""
    assert rank_ranges(0b1) == "0"
    assert rank_ranges(0b1110_1001) == "0,3,5-7"
    assert rank_ranges(((1 << 1000) - 1) << 24) == "24-1023"


def test_a_full_table_folds_by_first_words_and_then_into_one() -> None:
    table = TemplateTable(max_templates=4)
    masked = [f"{word} starts the pump".encode() for word in WORDS[:10]]
    found = [table.add(m, Template("folded", m.decode())) for m in masked]
    assert found == [0, 1, 2, 3, 4, 5, 5, 5, 5, 5]
    assert [t.text for t in table.templates][4:] == [
        f"{WORDS[4]} starts the <...>",
        "other lines <...>",
    ]


def test_text_for_a_model_keeps_to_its_budget_and_puts_causes_first(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    causes = write_log(path, 2_000_000)
    compressed = compress([path])
    whole = render(compressed)
    assert all(f"{number:>6} {text.rstrip()}" in whole for number, text in causes.items())
    for tokens in (200, 1000, 4000):
        text = render(compressed, max_tokens=tokens)
        assert len(text) <= tokens * 3
        assert "lines of 1 source(s)" in text
    assert (
        sum(cause.rstrip() in render(compressed, max_tokens=2500) for cause in causes.values()) > 25
    )


def test_text_says_what_is_left_out_and_how_often_lines_came(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    lines = [f"[rank{i % 4}]: port {i} opened" for i in range(100)]
    path.write_text("\n".join([*lines, "OSError: boom"]))
    text = render(compress([path]))
    assert "[x100, last job.log:100, ranks 0-3]" in text
    assert "... 92 lines" in text
    assert "   101 OSError: boom" in text


def test_the_sample_of_a_log_is_spread_over_it(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("".join(f"line {i}\n" for i in range(1000)))
    lines = sample_lines(path, 100)
    assert len(lines) == 100
    assert {line.split()[1][0] for line in lines} == set("123456789")


@pytest.mark.slow
def test_the_benchmark_measures_both() -> None:
    pytest.importorskip("drain3", reason="Drain3 is an extra: pip install 'overland[bench]'")
    command = [sys.executable, "-m", "tasks.diagnose.bench_compress", "--size-mb", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    assert figures["causes_kept"] == figures["causes"] > 0
    assert figures["ratio"] >= 50
    assert figures["lines"] > 20_000
    assert {"lines_per_s", "drain3_lines_per_s", "peak_mb", "kept_lines"} <= set(figures)
