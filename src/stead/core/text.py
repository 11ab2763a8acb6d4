"""Cutting text where a person would not see a wound: at code points, never inside one, and not inside an emoji sequence."""

from __future__ import annotations

import unicodedata

_JOINER = "\u200d"


def cut(text: str, limit: int) -> str:
    """The longest prefix of at most `limit` code points that does not end inside a cluster (emoji family, accent, flag)."""
    if len(text) <= limit:
        return text
    end = limit = max(limit, 0)
    while end > 0 and _joins(text, end):
        end -= 1
    return text[: end or limit]


def cut_bytes(text: str, limit: int) -> str:
    """The longest prefix whose UTF-8 form has at most `limit` bytes and that does not end inside a cluster."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= limit:
        return text
    while limit > 0 and raw[limit] & 0xC0 == 0x80:  # not inside a code point
        limit -= 1
    return cut(text, len(raw[: max(limit, 0)].decode("utf-8", "surrogatepass")))


def tail_bytes(text: str, limit: int) -> str:
    """The longest suffix whose UTF-8 form has at most `limit` bytes and that does not begin inside a cluster."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= limit:
        return text
    begin = len(raw) - max(limit, 0)
    while begin < len(raw) and raw[begin] & 0xC0 == 0x80:  # not inside a code point
        begin += 1
    first = start = len(text) - len(raw[begin:].decode("utf-8", "surrogatepass"))
    while start < len(text) and _joins(text, start):
        start += 1
    return text[start:] or text[first:]


def one_line(text: str, limit: int) -> str:
    """`text` as one line of at most `limit` code points for titles and progress: no control characters, an ellipsis where cut."""
    flat = " ".join("".join(c if c.isprintable() or _glue(c) else " " for c in text[: limit * 8]).split())
    whole = len(flat) <= limit and not text[limit * 8 :].strip()
    return flat if whole else (cut(flat, limit - 1) + "…")[: max(limit, 0)]


def _joins(text: str, at: int) -> bool:
    """Whether the code points on both sides of `at` belong together on the screen."""
    if at >= len(text):
        return False
    after, before = text[at], text[at - 1]
    point = ord(after)
    if point < 0x300:  # plain Latin text: nothing combines
        return before == "\r" and after == "\n"
    return (
        before == _JOINER
        or after == _JOINER
        or unicodedata.category(after)[0] == "M"  # accents, vowel signs, variation selectors
        or 0x1F3FB <= point <= 0x1F3FF  # skin tones
        or 0xE0020 <= point <= 0xE007F  # flag tags
        or 0x1160 <= point <= 0x11FF  # Korean letters that complete a syllable
        or (_regional(after) and _regional(before) and _odd_flags_before(text, at))
    )


def _glue(char: str) -> bool:
    """Invisible characters that hold what is visible together: joiners and flag tags."""
    return char in "\u200c\u200d" or 0xE0020 <= ord(char) <= 0xE007F


def _regional(char: str) -> bool:
    return 0x1F1E6 <= ord(char) <= 0x1F1FF


def _odd_flags_before(text: str, at: int) -> bool:
    start = at
    while start > 0 and _regional(text[start - 1]):
        start -= 1
    return (at - start) % 2 == 1
