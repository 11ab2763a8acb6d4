"""Line differences between two contents, as hunks. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

Code = tuple[str, int, int, int, int]

CONTEXT_LINES = 3
# difflib is quadratic at worst: where old times new lines is more than this, the middle is taken as replaced whole.
EXACT_CELLS = 4_000_000

_WIDE = ((b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def hunks(before: bytes, after: bytes) -> list[dict[str, Any]] | None:
    """`[{id, old_start, old_lines, new_start, new_lines, lines, review}]`, lines marked ` `, `-`, `+`; None for binary content.

    Lines are compared byte by byte; bytes that are no UTF-8 stand in them as lone surrogates (`surrogateescape`), so that a patch
    can be written exactly and a screen shows them as U+FFFD.
    """
    old_bytes, new_bytes = _lines(before), _lines(after)
    if old_bytes is None or new_bytes is None:
        return None
    old, new = ([line.decode("utf-8", "surrogateescape") for line in lines] for lines in (old_bytes, new_bytes))
    found = []
    for n, group in enumerate(_groups(old, new)):
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
                "id": n,
                "old_start": first[1] + (1 if old_lines else 0),
                "old_lines": old_lines,
                "new_start": first[3] + (1 if new_lines else 0),
                "new_lines": new_lines,
                "lines": lines,
                "review": "pending",
            }
        )
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


def patch(path: str, status: str, found: list[dict[str, Any]] | None) -> str:
    """One file's unified diff, as `git apply` and `patch` read it."""
    old, new = ("/dev/null" if status == "added" else f"a/{path}"), ("/dev/null" if status == "deleted" else f"b/{path}")
    if found is None:
        return f"Binary files {old} and {new} differ\n"
    out = [f"--- {old}\n", f"+++ {new}\n"]
    for hunk in found:
        out.append(f"@@ -{hunk['old_start']},{hunk['old_lines']} +{hunk['new_start']},{hunk['new_lines']} @@\n")
        for line in hunk["lines"]:
            out.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(out)


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


def _groups(old: Sequence[object], new: Sequence[object]) -> list[list[Code]]:
    """The changes with `CONTEXT_LINES` equal lines around them; those that share these lines stand together."""
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
