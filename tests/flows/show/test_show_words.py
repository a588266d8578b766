"""Numbers, times and text as people read them."""

from __future__ import annotations

import pytest

from flows.show import words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1m 00s"),
        (3599.6, "1h 00m"), (7500, "2h 05m"), (86_400 * 3 + 4 * 3600, "3d 04h"), (-3, "0.0 s"),
        (float("nan"), "?"),
    ],
)  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (43_100_000, "43.1 MB"),
     (999_600, "1.0 MB"), (250_000_000, "250 MB"), (1.4e12, "1.4 TB"), (5e18, "5000 PB")],
)  # fmt: skip
def test_size(size_bytes: int, text: str) -> None:
    assert words.size(int(size_bytes)) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (870, "870"), (12_345, "12.3k"), (999_999, "1.00M"), (2.1e9, "2.10B"),
     (123e9, "123B"), (1.5e12, "1.50T")],
)  # fmt: skip
def test_compact(number: float, text: str) -> None:
    assert words.compact(number) == text


def test_clean_cuts_long_lines() -> None:
    assert words.clean("a" * 400, 10) == "aaaaaaa..."


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("sqlite:////runs/mlflow.db", "sqlite:////runs/mlflow.db"),
        ("http://host:5000", "http://host:5000"),
        ("https://me:pass@host/x", "https://me:***@host/x"),
    ],
)
def test_without_password(uri: str, kept: str) -> None:
    assert words.without_password(uri) == kept
