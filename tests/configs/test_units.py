"""Quantities with units are read as people write them, and what could be meant otherwise is refused."""

from __future__ import annotations

import pytest

from configs.errors import InputError
from configs.units import (
    parse_bandwidth_bytes_per_s,
    parse_count,
    parse_duration_s,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15min", 900), ("15 m", 900), ("14.3h", 51_480), ("239d", 20_649_600)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("1.7TB", 1.7e12), ("512GiB", 512 * 2**30), ("3 mb", 3e6), ("100", 100), ("2PB", 2e15)],
)
def test_sizes(text: str, size_bytes: float) -> None:
    assert parse_size_bytes(text) == pytest.approx(size_bytes)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("20GB/s", 20e9), ("200Gbit/s", 25e9), ("1GiB/s", 2**30), ("5e8B/s", 5e8)],
)
def test_bandwidths(text: str, bytes_per_s: float) -> None:
    assert parse_bandwidth_bytes_per_s(text) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    ("text", "number"), [("123B", 123e9), ("7b", 7e9), ("1_000", 1000), ("10k", 10_000)]
)
def test_counts(text: str, number: float) -> None:
    assert parse_count(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["14.3", "h", "-3h", "0h", "1e999h", "3 weeks", ""])
def test_a_duration_needs_a_number_above_zero_and_a_unit(text: str) -> None:
    with pytest.raises(InputError):
        parse_duration_s(text)


@pytest.mark.parametrize("text", ["20Gb/s", "20GB", "0GB/s", "fast"])
def test_a_bandwidth_says_whether_it_means_bits(text: str) -> None:
    with pytest.raises(InputError):
        parse_bandwidth_bytes_per_s(text)


@pytest.mark.parametrize("text", ["-1TB", "0", "big", "1XB"])
def test_no_size(text: str) -> None:
    with pytest.raises(InputError):
        parse_size_bytes(text)
