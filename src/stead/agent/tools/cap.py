"""The one place where a tool's output is made small enough for a model."""

from __future__ import annotations

from stead.core.text import cut_bytes, tail_bytes

BYTES = 48 << 10
TOKENS = 12_000
_HEAD = 0.4  # of the room; the end of a command's output says more than its beginning


def cap(text: str, rest: str, *, limit: int = BYTES, tokens: int = TOKENS, head: float = _HEAD) -> tuple[str, bytes | None]:
    """`text` within `limit` bytes of UTF-8 and about `tokens` tokens, and the whole text as bytes if something was left out.

    Beginning and end stay, cut at line ends where these are near and never inside a character; a line between them says how
    much is missing and, with `rest`, how to get it. `head` is the share of the room that the beginning takes.
    """
    raw = text.encode("utf-8", "replace")
    room = _room(text, len(raw), limit, tokens)
    if len(raw) <= room:
        return text, None
    return _joined(text, text, len(raw), text.count("\n"), rest, room, head), raw


def cap_ends(
    first: str, last: str, size: int, lines: int, rest: str, *, limit: int = BYTES, tokens: int = TOKENS, head: float = _HEAD
) -> str:
    """What `cap` gives for a text of `size` bytes and `lines` line ends of which only the beginning and the end are at hand: at
    least `limit` bytes of each."""
    both = len(first.encode("utf-8", "replace")) + len(last.encode("utf-8", "replace"))
    return _joined(first, last, size, lines, rest, min(_room(first + last, both, limit, tokens), limit), head)


def _joined(first: str, last: str, size: int, lines: int, rest: str, room: int, head: float) -> str:
    """The beginning of `first` and the end of `last` in `room` bytes, and between them what is missing."""
    room = max(room - 200 - len(rest.encode()), 200)  # 200: the line in the middle
    first = _to_line_end(cut_bytes(first, int(room * head)))
    last = _from_line_start(tail_bytes(last, room - int(room * head)))
    size -= len(first.encode("utf-8", "replace")) + len(last.encode("utf-8", "replace"))
    lines -= first.count("\n") + last.count("\n")
    marker = f"[… {size:,} bytes" + (f" ({lines:,} lines)" if lines else "") + f" left out here{'; ' + rest if rest else ''} …]"
    return f"{first}{'' if first.endswith(chr(10)) or not first else chr(10)}{marker}\n{last}"


def estimated_tokens(text: str) -> int:
    """About how many tokens `text` costs: 4 characters of ASCII a token, every other character one."""
    plain = len(text.encode("ascii", "ignore"))
    return plain // 4 + len(text) - plain


def _room(text: str, size: int, limit: int, tokens: int) -> int:
    """Bytes that `text` may keep: fewer where its characters are dear."""
    estimate = estimated_tokens(text)
    return limit if estimate <= tokens else min(limit, size * tokens // estimate)


def _to_line_end(text: str) -> str:
    at = text.rfind("\n")
    return text[: at + 1] if at >= len(text) * 3 // 4 else text


def _from_line_start(text: str) -> str:
    at = text.find("\n")
    return text[at + 1 :] if 0 <= at < len(text) // 4 else text
