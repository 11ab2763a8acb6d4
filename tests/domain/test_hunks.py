"""Differences between contents: counted and shown by lines, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stead.core.errors import SteadError
from stead.domain.hunks import count, hunks, only, reviewed, without


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (None, b"a\nb\n", (2, 0)),
        (b"a\nb\n", None, (0, 2)),
        (b"a\nb\nc\n", b"a\nB\nc\n", (1, 1)),
        (b"a\nb", b"a\nb\n", (1, 1)),
        (b"a\r\nb\r\n", b"a\nb\r\n", (1, 1)),
        (b"a\rb\n", b"a\rc\n", (1, 1)),
        (b"", b"", (0, 0)),
        (None, None, (0, 0)),
        (b"a\0b", b"b\n", (0, 0)),
        ("a\nü\n".encode("utf-16"), "a\nö\n".encode("utf-16"), (1, 1)),
        ("a\nü\n".encode("utf-32"), "a\nö\n".encode("utf-32"), (1, 1)),
        (b"a\xff\n", b"a\xfe\n", (1, 1)),
        ("a\u2028b\n".encode(), "a\u2028c\n".encode(), (1, 1)),
    ],
)
def test_lines_are_counted_as_git_does(before: bytes | None, after: bytes | None, counts: tuple[int, int]) -> None:
    assert count(before, after) == counts


def test_very_large_files_are_counted_without_their_order() -> None:
    old = b"".join(b"line %d\n" % number for number in range(100_000))
    new = b"".join(b"other %d\n" % number if number % 2 else b"line %d\n" % number for number in range(100_000))
    assert count(old, new) == (50_000, 50_000)
    assert len(hunks(old, new) or []) == 1


LINES = st.lists(st.sampled_from([b"a", b"b", b"c\r", b"", b"\xff"]), max_size=12)


@given(LINES, LINES, st.booleans(), st.booleans())
@example([b"b", b"a", b"b", b"a", b"a"], [b"b", b"b", b"a"], False, True)
def test_a_hunk_holds_what_is_counted(old: list[bytes], new: list[bytes], end: bool, other: bool) -> None:
    before, after = b"\n".join(old) + b"\n" * end, b"\n".join(new) + b"\n" * other
    lines = [line for hunk in hunks(before, after) or [] for line in hunk["lines"]]
    assert (sum(line[0] == "+" for line in lines), sum(line[0] == "-" for line in lines)) == count(before, after)


def test_binary_content_has_no_lines() -> None:
    assert hunks(b"a\0", b"b\0") is None


LINES = st.lists(st.sampled_from([b"a\n", b"b\r\n", b"\n", b"c\xff\n", b"d\n"]), max_size=30).map(b"".join)


@given(LINES, LINES, st.data())
def test_hunks_are_taken_back_and_made_one_by_one(before: bytes, after: bytes, data: st.DataObject) -> None:
    found = hunks(before, after) or []
    ids = [hunk["id"] for hunk in found]
    assert len(set(ids)) == len(ids)
    assert without(before, after, []) == only(before, after, ids) == after
    assert without(before, after, ids) == only(before, after, []) == before
    chosen = data.draw(st.sets(st.sampled_from(ids))) if ids else set()
    rest = [one for one in ids if one not in chosen]
    assert without(before, after, chosen) == only(before, after, rest)
    shown = reviewed(before, only(before, after, chosen), after) or []
    kept = {hunk["id"] for hunk in shown if hunk["review"] == "kept"}
    assert kept <= chosen  # never more than was agreed to; a hunk beside an open one may stay open


def test_an_unknown_hunk_and_one_that_cannot_be_taken_are_refused() -> None:
    with pytest.raises(SteadError, match="no hunk"):
        without(b"a\n", b"b\n", ["nope"])
    with pytest.raises(SteadError, match="one by one"):
        only(b"a\0", b"b\0", [])
    with pytest.raises(SteadError, match="one by one"):
        only("a\n".encode("utf-16"), "b\n".encode("utf-16"), [])
