"""Differences between contents: counted and shown by lines, byte by byte."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stead.domain.hunks import count, hunks, patch


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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"one\ntwo\nthree\n", b"one\n2\nthree\nfour"),
        (b"a\n" * 30, b"a\n" * 10 + b"b\n" + b"a\n" * 25),
        (b"caf\xe9\nx\n", b"caf\xe9\ny\n"),
        (b"x\r\ny\r\n", b"x\r\nz\r\n"),
        (b"", b"new\n"),
        (b"gone\n", b""),
    ],
)
def test_a_patch_is_one_that_git_applies(before: bytes, after: bytes, tmp_path: Path) -> None:
    text = patch("f", "modified", hunks(before, after)).encode("utf-8", "surrogateescape")
    (tmp_path / "f").write_bytes(before)
    (tmp_path / "p").write_bytes(text)
    subprocess.run(["git", "apply", "--unidiff-zero", "p"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "f").read_bytes() == after


def test_binary_content_has_no_lines() -> None:
    assert hunks(b"a\0", b"b\0") is None
    assert "Binary" in patch("x.png", "modified", None)
