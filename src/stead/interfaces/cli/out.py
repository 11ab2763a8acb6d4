"""What goes out: stdout for results, stderr for the rest; nothing that a model or a tool wrote can steer a terminal."""

from __future__ import annotations

import os
import re
import sys
from typing import IO, Any

from stead.core.errors import SteadError
from stead.core.jsontext import shown, shown_deep
from stead.interfaces.cli.codes import NEXT

# Terminal sequences as a whole first (colours, titles, links), so that no tail of one is left over as text.
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)|\x1b[ -/]*[0-~]|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


def prepare() -> None:
    """Make stdout and stderr take any text: UTF-8, and what that cannot hold as a replacement character. A stream that the caller
    closed is an empty one."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout, sys.stderr = sys.stdout or open(os.devnull, "w"), sys.stderr or open(os.devnull, "w")  # noqa: SIM115
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
    """A line on stderr."""
    say(text + "\n")


def say(text: str) -> None:
    """Text on stderr, at once. A stderr that nobody reads or that takes nothing (a full disk, a terminal that is gone) is no
    reason to stop: what is lost there is said in the outcome, too."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        _to_nowhere(sys.stderr)


def _to_nowhere(stream: IO[str]) -> None:
    """Let nothing more be written to `stream`, and let what it holds back be thrown away, so that the interpreter ends quietly."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)
    except (OSError, ValueError):
        pass


def give_up() -> None:
    """Nothing more can be written to stdout."""
    _to_nowhere(sys.stdout)


def note(text: str) -> None:
    """A remark on stderr, from stead itself."""
    err(style(plain(text), "dim", sys.stderr))


def error(problem: SteadError) -> None:
    """An error: one line, and one for the next step where there is one."""
    head = style("stead:", "red", sys.stderr)
    err(f"{head} {' '.join(plain(problem.message).split())} ({problem.code})")
    for one in (problem.details or {}).get("candidates", ()):
        err(f"  {plain(str(one.get('id')))}  {plain(str(one.get('title', '')))}")
    if hint := problem.hint or NEXT.get(problem.code):
        err(style(f"  {' '.join(plain(hint).split())}", "dim", sys.stderr))


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


def local_time(ms: int, now: int) -> str:
    """A time for people: local; without the year where it is this one."""
    from datetime import datetime

    then, today = datetime.fromtimestamp(ms / 1000), datetime.fromtimestamp(now / 1000)
    return then.strftime("%b %d %H:%M" if then.year == today.year else "%b %d %Y")


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
