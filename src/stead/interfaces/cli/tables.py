"""Rows: a table on a terminal, TSV with a header line elsewhere."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

from stead.core.jsontext import shown
from stead.interfaces.cli import out

_NUMBERS = frozenset(
    ["messages", "calls", "input", "cached", "written", "output", "reasoning", "cost", "context", "size", "additions", "deletions"]
)
_FLEXIBLE = frozenset(["title", "path", "url", "model", "value", "project"])
_LEAST = 8
_GAP = 2


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under these names. On a terminal a table without rows is not drawn at all."""
    if sys.stdout.isatty():
        _drawn(names, rows)
        return
    out.line("\t".join(names))
    for row in rows:
        out.line("\t".join(cell(value) for value in row))


def cell(value: Any) -> str:
    """A value as a cell of TSV: tab, line end and backslash escaped."""
    return shown(_text(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n"))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    return str(value)


def _drawn(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table of the terminal's width: long names are cut with an ellipsis, all else keeps its place."""
    from shutil import get_terminal_size

    if not rows:
        return
    cells = [[" ".join(out.plain(_text(value)).split()) for value in row] for row in rows]
    widths = [max(width(head), *(width(row[at]) for row in cells)) for at, head in enumerate(heads)]
    over = sum(widths) + _GAP * (len(widths) - 1) - get_terminal_size().columns
    while over > 0:
        size, at = max((size, at) for at, size in enumerate([n if heads[i] in _FLEXIBLE else 0 for i, n in enumerate(widths)]))
        if size <= _LEAST:
            break
        widths[at] -= 1
        over -= 1
    out.line(out.style(_line(heads, heads, widths), "bold", sys.stdout))
    for row in cells:
        out.line(_line(heads, row, widths))


def _line(heads: Sequence[str], row: Sequence[str], widths: Sequence[int]) -> str:
    pieces = []
    for head, text, size in zip(heads, row, widths, strict=True):
        text = _fit(text, size)
        blanks = " " * (size - width(text))
        pieces.append(blanks + text if head in _NUMBERS else text + blanks)
    return (" " * _GAP).join(pieces).rstrip()


def _fit(text: str, size: int) -> str:
    if width(text) <= size:
        return text
    kept = text[: size - 1]
    while width(kept) > size - 1:
        kept = kept[:-1]
    return kept + "…"


def width(text: str) -> int:
    """How many columns of a terminal the text takes: two for wide letters, none for what combines."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(char) in ("Mn", "Me", "Cf") else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
