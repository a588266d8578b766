from __future__ import annotations

import hashlib

import pytest

from tasks.data.clean import DigestSet, cut, digest_of, normalise, split_position


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("caf\u0065\u0301", "caf\u00e9"),
        ("a\r\nb\rc\u2028d\x0ce", "a\nb\nc\nd\ne"),
        ("bell\x07 and nul\x00 and tab\t.", "bell and nul and tab\t."),
        ("\ufefftext", "text"),
        ("one  \n two\t\n\n\n", "one\n two"),
        ("\n\n  \nbody", "body"),
        ("half \ud83d pair", "half \ufffd pair"),
        (" \t\r\n\u00a0", ""),
    ],
)
def test_normalise(raw: str, clean: str) -> None:
    assert normalise(raw) == clean
    assert normalise(clean) == clean


def test_cut_keeps_every_word_and_prefers_paragraphs() -> None:
    text = "first paragraph here\n\nsecond one with words " + "x" * 50 + " end"
    pieces = list(cut(text, 30))
    assert pieces[0] == "first paragraph here"
    assert all(len(piece) <= 30 for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert list(cut("short", 30)) == ["short"]


def test_digest_set_tells_new_from_seen_while_it_grows() -> None:
    digests = [hashlib.blake2b(str(i).encode(), digest_size=16).digest() for i in range(5_000)]
    seen = DigestSet()
    assert all(seen.add(digest) for digest in digests)
    assert not any(seen.add(digest) for digest in digests)
    assert len(seen) == len(digests)


def test_split_position_is_uniform_and_depends_on_the_seed() -> None:
    digests = [digest_of(str(i)) for i in range(4_000)]
    positions = [split_position(digest, 1) for digest in digests]
    assert all(0 <= position < 1 for position in positions)
    assert 0.08 < sum(position < 0.1 for position in positions) / len(positions) < 0.12
    assert positions != [split_position(digest, 2) for digest in digests]
