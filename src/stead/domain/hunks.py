"""Line differences between two contents, as hunks. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from difflib import SequenceMatcher

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
    old, new = old[head : len(old) - tail], new[head : len(new) - tail]
    if len(old) * len(new) > EXACT_CELLS:
        from collections import Counter

        return (Counter(new) - Counter(old)).total(), (Counter(old) - Counter(new)).total()
    same = sum(block.size for block in _matcher(old, new).get_matching_blocks())
    return len(new) - same, len(old) - same


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


def _groups(old: list[str], new: list[str]) -> list[list[tuple[str, int, int, int, int]]]:
    head, tail = _common(old, new)
    if (len(old) - head - tail) * (len(new) - head - tail) <= EXACT_CELLS:
        return [list(group) for group in _matcher(old, new).get_grouped_opcodes(CONTEXT_LINES)]
    a, b = max(head - CONTEXT_LINES, 0), min(tail, CONTEXT_LINES)
    whole = [("equal", a, head, a, head), ("replace", head, len(old) - tail, head, len(new) - tail)]
    return [[*whole, ("equal", len(old) - tail, len(old) - tail + b, len(new) - tail, len(new) - tail + b)]]


def _common(old: Sequence[object], new: Sequence[object]) -> tuple[int, int]:
    """How many lines both begin with, and how many of the rest both end with."""
    most, head = min(len(old), len(new)), 0
    while head < most and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < most - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return head, tail


def _matcher(old: Sequence[Any], new: Sequence[Any]) -> SequenceMatcher[Any]:
    from difflib import SequenceMatcher

    return SequenceMatcher(None, old, new, autojunk=False)
