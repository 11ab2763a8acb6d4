"""Line differences between two contents, as hunks. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from stead.core.errors import SteadError

Code = tuple[str, int, int, int, int]

CONTEXT_LINES = 3
# difflib is quadratic at worst: where old times new lines is more than this, the middle is taken as replaced whole.
EXACT_CELLS = 4_000_000

_WIDE = ((b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def hunks(before: bytes, after: bytes) -> list[dict[str, Any]] | None:
    """`[{id, old_start, old_lines, new_start, new_lines, lines, review}]`, lines marked ` `, `-`, `+`; None for binary content.

    Lines are compared byte by byte; bytes that are no UTF-8 stand in them as lone surrogates (`surrogateescape`), so that a patch
    can be written exactly and a screen shows them as U+FFFD. An `id` is made of the hunk's lines: it stays what it is when
    others go.
    """
    old_bytes, new_bytes = _lines(before), _lines(after)
    if old_bytes is None or new_bytes is None:
        return None
    old, new = ([line.decode("utf-8", "surrogateescape") for line in lines] for lines in (old_bytes, new_bytes))
    found: list[dict[str, Any]] = []
    for group in groups(old, new):
        lines: list[str] = []
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [" " + line for line in old[i1:i2]]
                continue
            lines += ["-" + line for line in old[i1:i2]]
            lines += ["+" + line for line in new[j1:j2]]
        first, last = group[0], group[-1]
        old_lines, new_lines = last[2] - first[1], last[4] - first[3]
        found.append(
            {
                "id": _id(lines, found),
                "old_start": first[1] + (1 if old_lines else 0),
                "old_lines": old_lines,
                "new_start": first[3] + (1 if new_lines else 0),
                "new_lines": new_lines,
                "lines": lines,
                "review": "pending",
            }
        )
    return found


def _id(lines: list[str], before: list[dict[str, Any]]) -> str:
    """Of the changed lines alone; a second hunk with the same ones gets a number."""
    import hashlib

    changed = "".join(line for line in lines if line[0] != " ")
    made = hashlib.sha256(changed.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    same = sum(one["id"].partition("-")[0] == made for one in before)
    return f"{made}-{same + 1}" if same else made


def without(before: bytes, after: bytes, chosen: Collection[str]) -> bytes:
    """`after` with the hunks of these ids taken back, byte for byte. Raises `not_found` for an id that is none, `usage` where
    lines cannot be chosen (binary content, UTF-16)."""
    return _put_together(before, after, chosen, take=False)


def only(before: bytes, after: bytes, chosen: Collection[str]) -> bytes:
    """`before` with only the hunks of these ids made. Raises as `without`."""
    return _put_together(before, after, chosen, take=True)


def _put_together(before: bytes, after: bytes, chosen: Collection[str], *, take: bool) -> bytes:
    found = hunks(before, after)
    if found is None or any(content.startswith(mark) for content in (before, after) for mark, _ in _WIDE):
        raise SteadError("usage", "The lines of this file cannot be taken one by one.")
    ids = {hunk["id"] for hunk in found}
    if missing := [one for one in chosen if one not in ids]:
        hint = "`stead diff --json` has their ids."
        raise SteadError("not_found", f"There is no hunk {missing[0]!r}.", hint=hint, details={"hunk": missing[0]})
    old, new = _lines(before) or [], _lines(after) or []
    out: list[bytes] = []
    at = 0
    for hunk, group in zip(found, groups(old, new), strict=True):
        for tag, i1, i2, j1, j2 in group:
            out += old[at:i1]
            made = tag != "equal" and (hunk["id"] in chosen) == take
            out += new[j1:j2] if made else old[i1:i2]
            at = i2
    return b"".join([*out, *old[at:]])


def reviewed(before: bytes, kept: bytes, after: bytes) -> list[dict[str, Any]] | None:
    """The hunks from `before` to `after`, those `kept` that the content agreed to, `kept`, has already."""
    found = hunks(before, after)
    agreed, new = _lines(kept), _lines(after)
    if found is None or agreed is None or new is None:
        return found
    open_lines = [(j1, j2) for tag, _, _, j1, j2 in _codes(agreed, new) if tag != "equal"]
    for hunk, group in zip(found, groups(_lines(before) or [], new), strict=True):
        spans = [(j1, j2) for tag, _, _, j1, j2 in group if tag != "equal"]
        touched = any(a <= j2 and j1 <= b for a, b in open_lines for j1, j2 in spans)
        hunk["review"] = "pending" if touched else "kept"
    return found


def count(before: bytes | None, after: bytes | None) -> tuple[int, int]:
    """(additions, deletions) in lines; None stands for no file, binary content counts as (0, 0).

    For very different large files the numbers come from comparing the two collections of lines, without their order.
    """
    old, new = _lines(before or b""), _lines(after or b"")
    if old is None or new is None:
        return 0, 0
    head, tail = _common(old, new)
    if _is_large(len(old) - head - tail, len(new) - head - tail):
        from collections import Counter

        left, right = Counter(old[head : len(old) - tail]), Counter(new[head : len(new) - tail])
        return (right - left).total(), (left - right).total()
    changed = [code for code in _codes(old, new) if code[0] != "equal"]
    return sum(j2 - j1 for *_, j1, j2 in changed), sum(i2 - i1 for _, i1, i2, _, _ in changed)


def _lines(content: bytes) -> list[bytes] | None:
    """The lines of a text, None for binary content. Only LF ends a line, as in git; UTF-16 with its mark is text too."""
    wide = next((name for mark, name in _WIDE if content.startswith(mark)), None)
    if wide is not None:
        try:
            content = content.decode(wide).encode("utf-8", "surrogatepass")
        except UnicodeError:
            return None
    if b"\0" in content:
        return None
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


def _codes(old: Sequence[object], new: Sequence[object]) -> list[Code]:
    """What turns the old lines into the new ones: (tag, old from, old to, new from, new to), equal lines included."""
    head, tail = _common(old, new)
    a, b = len(old) - tail, len(new) - tail
    codes: list[Code] = [("equal", 0, head, 0, head)] if head else []
    if _is_large(a - head, b - head):
        codes.append(("replace", head, a, head, b))
    else:
        from difflib import SequenceMatcher

        between = SequenceMatcher(None, old[head:a], new[head:b], autojunk=False).get_opcodes()
        codes += [(tag, i1 + head, i2 + head, j1 + head, j2 + head) for tag, i1, i2, j1, j2 in between]
    return [*codes, ("equal", a, len(old), b, len(new))] if tail else codes


def _is_large(old: int, new: int) -> bool:
    return old * new > EXACT_CELLS


def groups(old: Sequence[object], new: Sequence[object]) -> list[list[Code]]:
    """The changes from `old` to `new` with `CONTEXT_LINES` equal lines around them; those that share these lines stand together."""
    groups: list[list[Code]] = []
    group: list[Code] = []
    for tag, i1, i2, j1, j2 in _codes(old, new):
        if tag != "equal":
            group.append((tag, i1, i2, j1, j2))
        elif not group:
            first = max(i2 - CONTEXT_LINES, i1)
            group = [(tag, first, i2, j2 - (i2 - first), j2)]
        elif i2 - i1 > 2 * CONTEXT_LINES:
            groups.append([*group, (tag, i1, i1 + CONTEXT_LINES, j1, j1 + CONTEXT_LINES)])
            group = [(tag, i2 - CONTEXT_LINES, i2, j2 - CONTEXT_LINES, j2)]
        else:
            group.append((tag, i1, i2, j1, j2))
    if any(tag != "equal" for tag, *_ in group):
        tag, i1, i2, j1, j2 = group[-1]
        if tag == "equal":
            kept = min(i2 - i1, CONTEXT_LINES)
            group[-1] = (tag, i1, i1 + kept, j1, j1 + kept)
        groups.append(group)
    return groups


def _common(old: Sequence[object], new: Sequence[object]) -> tuple[int, int]:
    """How many lines both begin with, and how many of the rest both end with."""
    most, head = min(len(old), len(new)), 0
    while head < most and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < most - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return head, tail
