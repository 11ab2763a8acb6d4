"""Cutting text (field report B145): at every length the piece is sound, within its limit, and no cluster is torn."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.core.text import cut, cut_bytes, one_line, tail_bytes

# Each a list of clusters: what a person sees as one sign.
CLUSTERED = {
    "plain": list("hello world"),
    "four-byte emoji": list("😀🎉🚀" * 3),
    "family": ["a", "👨‍👩‍👧‍👦", "b", "👩🏽‍💻", "🏳️‍🌈", "c"],
    "skin tones": ["👍🏽", "👍", "👋🏿", "x"],
    "flags": ["🇩🇪", "🇫🇷", "🇯🇵", "🇧🇷", "!"],
    "tag flags": ["🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", "x", "🏴"],
    "keycaps": ["1️⃣", "2️⃣", "#️⃣"],
    "combining": ["e\u0301", "a\u0308\u0304", "o", "n\u0303\u0323\u0307"],
    "vowel signs": ["कि", "नी", "ก", "ที่", "שׁ", "مُ"],
    "jamo": ["\u1112\u1161\u11ab", "\u1100\u1173\u11af"],
    "line ends": ["a", "\r\n", "b", "\n", "\r\n", "\r"],
    "lone surrogates": ["\ud800", "x", "\udfff", "\udfff", "é"],
    "mixed": ["z", "é", "👨‍👩‍👧", "e\u0301", "🇩🇪", "🇩🇪", "中", "文", "\0", "-"],
}
CASES = pytest.mark.parametrize("clusters", CLUSTERED.values(), ids=CLUSTERED.keys())


def utf8(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def whole_prefixes(clusters: list[str]) -> set[str]:
    return {"".join(clusters[:n]) for n in range(len(clusters) + 1)}


@CASES
def test_b145_cut_at_every_length(clusters: list[str]) -> None:
    text = "".join(clusters)
    for limit in range(len(text) + 2):
        piece = cut(text, limit)
        assert text.startswith(piece) and len(piece) <= limit
        if limit >= len(clusters[0]):  # a single cluster over the limit is cut at a code point, as there is nothing better
            fitting = [whole for whole in whole_prefixes(clusters) if len(whole) <= limit]
            assert piece == max(fitting, key=len)
            assert piece


@CASES
def test_b145_cut_by_bytes_at_every_length(clusters: list[str]) -> None:
    text = "".join(clusters)
    for limit in range(utf8(text) + 2):
        piece = cut_bytes(text, limit)
        assert text.startswith(piece) and utf8(piece) <= limit
        if limit >= utf8(clusters[0]):
            assert piece in whole_prefixes(clusters)
            assert piece


@CASES
def test_b145_the_tail_by_bytes_at_every_length(clusters: list[str]) -> None:
    text = "".join(clusters)
    whole = {"".join(clusters[n:]) for n in range(len(clusters) + 1)}
    for limit in range(utf8(text) + 2):
        piece = tail_bytes(text, limit)
        assert text.endswith(piece) and utf8(piece) <= limit
        if limit >= utf8(clusters[-1]):
            assert piece in whole
            assert piece


@CASES
def test_b145_titles_at_every_length(clusters: list[str]) -> None:
    text = "".join(clusters)
    for limit in range(len(text) + 3):
        title = one_line(text, limit)
        assert len(title) <= limit
        title.encode("utf-8")  # no half character
        assert not any(unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") for char in title)


def test_b145_a_title_keeps_families_and_flags_whole() -> None:
    assert one_line("the 👨‍👩‍👧 of 🏴\U000e0067\U000e0062\U000e007f", 40) == "the 👨‍👩‍👧 of 🏴\U000e0067\U000e0062\U000e007f"


@pytest.mark.parametrize(
    "text, limit, title",
    [
        ("short", 10, "short"),
        ("exactly ten", 11, "exactly ten"),
        ("one letter more", 14, "one letter mo…"),
        ("  first\n\tsecond\r\nthird\x1b[31m ", 40, "first second third [31m"),
        ("a\u2028b\u2029c\0d\x85e", 40, "a b c d e"),
        ("right\u202eto\u2066left", 40, "right to left"),
        ("x" + " " * 500 + "y", 10, "x…"),
        ("x" + " " * 500, 10, "x"),
        ("", 10, ""),
        ("anything", 0, ""),
        ("anything", 1, "…"),
    ],
)
def test_titles(text: str, limit: int, title: str) -> None:
    assert one_line(text, limit) == title


@given(st.text(st.characters(exclude_categories=())), st.integers(0, 60))
def test_b145_any_text_at_any_length(text: str, limit: int) -> None:
    head, head_bytes, tail = cut(text, limit), cut_bytes(text, limit), tail_bytes(text, limit)
    assert text.startswith(head) and len(head) <= limit
    assert text.startswith(head_bytes) and utf8(head_bytes) <= limit
    assert text.endswith(tail) and utf8(tail) <= limit
    one_line(text, limit).encode("utf-8")
    if len(text) <= limit:
        assert head == text
    if utf8(text) <= limit:
        assert head_bytes == tail == text


def test_lone_surrogates_are_counted_not_lost() -> None:
    text = "\ud800" * 100
    assert len(cut_bytes(text, 150)) == 50
    assert len(tail_bytes(text, 150)) == 50


def test_a_sign_longer_than_the_limit_still_shows_something() -> None:
    marks = "e" + "\u0301" * 1_000
    assert cut(marks, 10) and cut_bytes(marks, 10) and tail_bytes(marks, 10)
