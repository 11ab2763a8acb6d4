"""Three-way merge of lines. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stead.domain.hunks import EXACT_CELLS

Span = tuple[int, int, list[bytes]]


def merge(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """What `ours` becomes with what leads from `base` to `theirs`; None where both changed the same lines, or lines that touch.

    Only LF ends a line; every byte outside of the changes stays. The same change on both sides is one. Binary content (with NUL
    in it) is merged only where one side did not change it. None as well for texts so large and so different that it cannot be told.
    """
    if ours == theirs or theirs == base:
        return ours
    if ours == base:
        return theirs
    if b"\0" in base or b"\0" in ours or b"\0" in theirs:
        return None
    old, mine, other = _lines(base), _lines(ours), _lines(theirs)
    left, right = _spans(old, mine), _spans(old, other)
    if left is None or right is None:
        return None
    both = _joined(left, right)
    if both is None:
        return None
    out: list[bytes] = []
    at = 0
    for begin, end, new in both:
        out += old[at:begin]
        out += new
        at = end
    return b"".join([*out, *old[at:]])


def _lines(content: bytes) -> list[bytes]:
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


def _spans(old: Sequence[bytes], new: list[bytes]) -> list[Span] | None:
    """The changed stretches of `old` (from, to) with the lines that take their place; None where that costs too much to tell."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(a) * len(b) > EXACT_CELLS:
        return None
    from difflib import SequenceMatcher

    codes = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(i1 + head, i2 + head, b[j1:j2]) for tag, i1, i2, j1, j2 in codes if tag != "equal"]


def _joined(left: list[Span], right: list[Span]) -> list[Span] | None:
    """Both sides' changes in order; None where two different ones overlap or touch."""
    merged: list[Span] = []
    rest = [list(left), list(right)]
    while rest[0] or rest[1]:
        if rest[0] and rest[1] and rest[0][0] == rest[1][0]:
            merged.append(rest[0].pop(0))
            rest[1].pop(0)
            continue
        side = 0 if not rest[1] or (rest[0] and rest[0][0][:2] <= rest[1][0][:2]) else 1
        span = rest[side].pop(0)
        if rest[1 - side] and rest[1 - side][0][0] <= span[1]:
            return None
        if merged and merged[-1][1] >= span[0]:
            return None
        merged.append(span)
    return merged
