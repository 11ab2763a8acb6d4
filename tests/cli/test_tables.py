"""Tables on a terminal keep their columns and cut only what may be cut."""

from __future__ import annotations

import io
import sys

import pytest

from stead.interfaces.cli import out
from stead.interfaces.cli.tables import table, width


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(monkeypatch: pytest.MonkeyPatch, columns: int, heads: list[str], rows: list[list[object]]) -> list[str]:
    screen = Screen()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", screen)
    table(heads, rows)
    return screen.getvalue().splitlines()


@pytest.mark.parametrize("title", ["a long title " * 20, "漢字" * 60, "é" * 100, "👩‍👩‍👧 family " * 20])
@pytest.mark.parametrize("columns", [80, 120])
def test_a_long_title_is_cut_and_nothing_else(monkeypatch: pytest.MonkeyPatch, title: str, columns: int) -> None:
    lines = drawn(monkeypatch, columns, ["id", "title", "status", "cost"], [["a1b2c3d4e5", title, "running", "$0.0123"]])
    assert all(width(line) <= columns for line in lines)
    assert lines[1].startswith("a1b2c3d4e5  ") and lines[1].endswith("running  $0.0123") and "…" in lines[1]


def test_numbers_stand_to_the_right_and_odd_cells_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, 80, ["title", "calls"], [["two\nlines\x1b[31m", 7], ["b", 1234]])
    assert lines == ["title      calls", "two lines      7", "b           1234"]


def test_no_rows_draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, 80, ["a"], []) == []


@pytest.mark.parametrize(
    "text, kept",
    [
        ("plain", "plain"),
        ("a\x1b[1;31mb\x1b[0mc", "abc"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]never ended", ""),
        ("\x1bPq#0\x1b\\x", "x"),
        ("a\x1b", "a"),
        ("a\r\nb\rc\td\n", "a\nbc\td\n"),
        ("a\u202eb\u2066c", "abc"),
        ("a\ud800b", "a�b"),
        ("a\x00\x07\x08b\x7f\x85", "ab"),
        ("ü漢👩‍👧", "ü漢👩‍👧"),
    ],
)
def test_text_for_a_terminal(text: str, kept: str) -> None:
    assert out.plain(text) == kept


def test_json_text_keeps_what_json_can_hold() -> None:
    assert out.json_text({"n": 1 << 80, "s": "\ud800"}) == '{"n":1208925819614629174706176,"s":"�"}'
    assert out.json_text({"a": [1, None, "é"]}) == '{"a":[1,null,"é"]}'


@pytest.mark.parametrize("cost, shown", [(None, "unknown"), (0.0, "$0.00"), (0.00123, "$0.0012"), (1.5, "$1.50")])
def test_money(cost: float | None, shown: str) -> None:
    assert out.dollars(cost) == shown


@pytest.mark.parametrize("number, shown", [(0, "0"), (9_999, "9,999"), (10_000, "10.0k"), (2_345_678, "2.3M")])
def test_counts(number: int, shown: str) -> None:
    assert out.count(number) == shown
