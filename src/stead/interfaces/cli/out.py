"""What goes out: stdout for results, stderr for the rest; nothing that a model or a tool wrote can steer a terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import IO, Any

from stead.core.errors import SteadError
from stead.core.jsontext import shown, shown_deep

# Terminal sequences as a whole first (colours, titles, links), so that no tail of one is left over as text.
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)|\x1b[ -/]*[0-~]|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


def prepare() -> None:
    """Make stdout and stderr take any text: UTF-8, and what that cannot hold as a replacement character."""
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(encoding="utf-8", errors="replace")


def colours(stream: IO[str]) -> bool:
    """Whether this stream takes colours: a terminal, and nobody set NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def plain(text: str) -> str:
    """`text` for a terminal: no control characters but tab and line end, no lone surrogates."""
    if text.isascii() and text.isprintable():
        return text
    text = _SEQUENCE.sub("", text.replace("\r\n", "\n"))
    return shown(_CONTROL.sub("", text))


def style(text: str, name: str, stream: IO[str]) -> str:
    """`text` in a style, where the stream takes colours."""
    return f"\x1b[{_STYLES[name]}m{text}\x1b[0m" if text and colours(stream) else text


def line(text: str = "") -> None:
    """A line of the result."""
    sys.stdout.write(text + "\n")


def err(text: str = "") -> None:
    """A line on stderr. A stderr that nobody reads is no reason to stop."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):
        pass


def note(text: str) -> None:
    """A remark on stderr, from stead itself."""
    err(style(plain(text), "dim", sys.stderr))


def error(problem: SteadError) -> None:
    """An error: one line, and one for the next step where there is one."""
    head = style("stead:", "red", sys.stderr)
    err(f"{head} {' '.join(plain(problem.message).split())} ({problem.code})")
    if problem.hint:
        err(style(f"  {' '.join(plain(problem.hint).split())}", "dim", sys.stderr))


def json_text(value: Any, *, indent: bool = False) -> str:
    """A value as JSON text: integers of any size exact, lone surrogates as U+FFFD."""
    import orjson

    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else 0).decode()
    except TypeError:
        import json as standard

        separators = None if indent else (",", ":")
        return standard.dumps(
            shown_deep(value), ensure_ascii=False, separators=separators, indent=2 if indent else None, allow_nan=False
        )


def json(value: Any) -> None:
    """The one JSON value of a command; laid out for reading where a person reads it."""
    line(json_text(value, indent=sys.stdout.isatty()))


def json_line(value: Any) -> None:
    """One JSON value on a line of its own, at once."""
    line(json_text(value))
    sys.stdout.flush()


def table(names: Sequence[str], rows: Sequence[Sequence[Any]], *, heads: Sequence[str] | None = None) -> None:
    """Rows as a table on a terminal, as TSV with a header line elsewhere. `heads`: the names for people."""
    if sys.stdout.isatty():
        _drawn(heads or names, rows)
        return
    line("\t".join(names))
    for row in rows:
        line("\t".join(_cell(value) for value in row))


def _cell(value: Any) -> str:
    text = _text(value)
    return shown(text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n"))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    return str(value)


def _drawn(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold" if colours(sys.stdout) else "")
    for at, head in enumerate(heads):
        numbers = any(isinstance(row[at], (int, float)) and not isinstance(row[at], bool) for row in rows)
        made.add_column(head, justify="right" if numbers else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        made.add_row(*(Text(" ".join(plain(_text(value)).split())) for value in row))
    Console(file=sys.stdout, no_color=not colours(sys.stdout), highlight=False).print(made)


def local_time(ms: int) -> str:
    """A time for people: local, to the minute."""
    from datetime import datetime

    return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M")


def dollars(cost: float | None) -> str:
    """Money for people."""
    if cost is None:
        return "unknown"
    return f"${cost:.2f}" if cost >= 1 or cost == 0 else f"${cost:.4f}"


def count(number: int) -> str:
    """A number for people, short."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size * 10 or (number >= size and unit == "M"):
            return f"{number / size:.1f}{unit}"
    return f"{number:,}"
